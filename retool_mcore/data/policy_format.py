"""The format of a stage: its configuration's, over its policy's tokenizer."""

from collections.abc import Mapping
from pathlib import Path

from transformers import AutoTokenizer

from retool_mcore.data.formats import Format, get_format
from retool_mcore.errors import UserError


def load_format(config: Mapping, folder: str | Path) -> Format:
    """The format of a stage's `config` over the tokenizer in `folder`, with the model group's chat template if any.

    Raises UserError when the tokenizer cannot be loaded, and when the chat template does not fit the format.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # what transformers raises for a damaged folder has no common type
        words = " ".join(str(error).split())[:300]
        raise UserError(f"The tokenizer in {folder} cannot be loaded ({words}): copy its files again.") from error
    model = config["model"]
    if template := config["rollout"].get("chat_template"):
        tokenizer.chat_template = template
    return get_format(config["rollout"]["format"], tokenizer, model.get("apply_chat_template_kwargs"))
