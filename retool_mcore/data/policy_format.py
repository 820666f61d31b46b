"""The format of a stage: its configuration's, over its policy's tokenizer."""

from collections.abc import Mapping
from pathlib import Path

from transformers import AutoTokenizer

from retool_mcore.data.formats import Format, get_format


def load_format(config: Mapping, folder: str | Path) -> Format:
    """The format of a stage's `config` over the tokenizer in `folder`, with the model group's chat template if any."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), config["model"]
    if template := config["rollout"].get("chat_template"):
        tokenizer.chat_template = template
    return get_format(config["rollout"]["format"], tokenizer, model.get("apply_chat_template_kwargs"))
