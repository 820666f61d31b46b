"""A published model that learns to use the interpreter on public problems: the study of docs/measured/real_model.md."""
