"""The function schemas of a repository's tools."""

from retool_mcore.data.formats import TOOL

_PATH = {"type": "string", "description": "Path inside the repository, as list_files shows it."}


def _schema(name: str, description: str, optional: tuple[str, ...] = (), **properties: dict) -> dict:
    parameters = {
        "type": "object",
        "properties": properties,
        "required": [key for key in properties if key not in optional],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def _text(description: str) -> dict:
    return {"type": "string", "description": description}


def _line(description: str) -> dict:
    return {"type": "integer", "minimum": 1, "description": description}


SCHEMAS = [
    _schema("list_files", "List the files of the repository."),
    _schema(
        "view",
        "Show a file, or some of its lines, with line numbers.",
        optional=("start", "end"),
        path=_PATH,
        start=_line("First line; 1 when left out."),
        end=_line("Last line; the file's last when left out."),
    ),
    _schema("search", "Show every line that holds a text.", text=_text("What to look for, literally.")),
    _schema(
        "replace",
        "Replace a piece of a file. The piece must stand there exactly once.",
        path=_PATH,
        old=_text("The text that stands there, without line numbers."),
        new=_text("What to put in its place."),
    ),
    _schema("write", "Make or overwrite a whole file.", path=_PATH, text=_text("The whole content.")),
    _schema("run_tests", "Run the repository's tests and show what fails."),
    TOOL,
    _schema("submit", "End the work: the repository is scored as it is now."),
]
