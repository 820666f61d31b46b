"""Writes docs/recipes.md from the configuration: `python -m docs.recipes`. What it says is what runs.

Explanations are the docstrings of the typed configuration, of the rewards and of the filters, and the comments of the
presets; nothing is written twice.
"""

import ast
import functools
import inspect
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from docs import recipe_runs as seen
from docs.fields import shown, translation
from retool_mcore.config import CONFIG_DIR, compose
from retool_mcore.config.keys import UNSET, explanations, fields, prose
from retool_mcore.config.models import Recipe, Rl
from retool_mcore.config.overrides import leaves
from retool_mcore.recipes import group_filters, sample_filters
from retool_mcore.rewards.registry import find_reward

PAGE = CONFIG_DIR.parent / "docs" / "recipes.md"
# The data that a recipe cannot do without; the others run on any.
DATA = {"skyrl": ["data=repo_bugs"], "tool_n1": ["data=functions"], "toolrl": ["data=functions"]}
# What any recipe takes and none has by itself.
OPTIONS = ("recipe.advantage=gae", "pipeline=partial", "pipeline=one_step_off", "pipeline=async")
UNCONFIRMED = re.compile(r"not confirmed|not found|not given|unconfirmed")

_LINE = re.compile(r"(?P<indent> *)(?P<key>[\w.]+):(?P<value>(?:[^#]|(?<! )#)*?)(?: +# (?P<comment>.*))?")


@functools.cache
def configuration(recipe: str) -> DictConfig:
    """The RL stage's configuration with this recipe."""
    return compose("rl", [f"recipe={recipe}", *DATA.get(recipe, ())])


def comments(path: Path) -> dict[str, str]:
    """The comment of each dotted key of a YAML file: beside it, or on the lines right above it. The first line is the
    file's own."""
    found: dict[str, str] = {}
    parents: list[tuple[int, str]] = []
    above: list[str] = []
    for line in path.read_text().splitlines()[1:]:
        if line.lstrip().startswith("# "):
            above.append(line.strip().removeprefix("# "))
        elif match := _LINE.fullmatch(line):
            indent = len(match["indent"])
            parents = [(depth, key) for depth, key in parents if depth < indent] + [(indent, match["key"])]
            dotted = ".".join(key for _, key in parents)
            comment = "; ".join([*above, *filter(None, [match["comment"]])])
            if comment:
                found[dotted] = comment
            above = []
        else:
            above = []
    return found


def head(path: Path) -> str:
    """A YAML file's first comment."""
    return path.read_text().splitlines()[0].removeprefix("# ")


def explain(key: str, *sources: dict[str, str]) -> str:
    """The explanation of `key` or of the nearest section around it, from the first of `sources` that has one."""
    parts = key.split(".")
    for source in sources:
        for length in range(len(parts), 0, -1):
            if ".".join(parts[:length]) in source:
                return source[".".join(parts[:length])]
    return ""


def raw_leaves(path: Path) -> Iterator[tuple[str, object]]:
    """Keys and values of a recipe's file as they stand there, interpolations unresolved."""
    node = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    node.pop("defaults", None)
    yield from leaves(node)


def table(rows: Iterable[tuple[str, object, str]]) -> list[str]:
    lines = ["| key | value | why |", "|---|---|---|"]
    for key, value, why in rows:
        lines.append(f"| `{key}` | `{_yaml(value)}` | {why.replace('|', chr(92) + '|')} |")
    return lines


def _yaml(value: object) -> str:
    return json.dumps(value) if value is None or isinstance(value, bool | dict | list) else str(value)


def docstring(function) -> list[str]:
    return [
        "```",
        f"{function.__module__.removeprefix('retool_mcore.')}.{function.__name__}",
        "",
        inspect.getdoc(function),
        "```",
    ]


def recipe_section(path: Path) -> list[str]:
    own, base = comments(path), explanations(Recipe)
    recipe = configuration(path.stem).recipe
    words = " ".join([f"recipe={path.stem}", *DATA.get(path.stem, ())])
    rows = [(k, v, explain(k, own, base)) for k, v in raw_leaves(path) if k not in ("name", "paper")]
    lines = [f"## {path.stem}", "", head(path), "", f"Source: {recipe.paper}. Run it: `retool rl {words}`."]
    if recipe.needs:
        lines += [
            "",
            f"**Refused**: it needs {recipe.needs}, which this version does not have. The reward is there and tested.",
        ]
    lines += ["", *table(rows), ""]
    for name in filter(None, (recipe.reward.name, recipe.group_reward.name)):
        lines += docstring(find_reward(name)) + [""]
    open_points = [f"`{key}`: {text}" for key, text in own.items() if UNCONFIRMED.search(text)]
    if UNCONFIRMED.search(head(path)):
        open_points.insert(0, head(path))
    lines += ["Not confirmed: " + ("; ".join(open_points) + "." if open_points else "nothing."), ""]
    return lines


def dry_run_section(name: str = "otc") -> list[str]:
    """The part of `retool rl recipe=NAME --full` that the recipe decides, line by line."""
    path = CONFIG_DIR / "recipe" / f"{name}.yaml"
    config = configuration(name)
    recipe_comments = (comments(path), explanations(Recipe))
    lines = [f"## `retool rl recipe={name} --full`, line by line", ""]
    lines += [
        "The whole output is every key of ours and of verl's. Of it, the recipe decides these sections:",
        "",
        "`recipe`:",
        "",
    ]
    lines += table((k, v, explain(k, *recipe_comments)) for k, v in leaves(OmegaConf.to_container(config.recipe)))
    shared = explanations(Rl)
    for section in ("rollout", "train"):
        values = leaves(OmegaConf.to_container(config[section]), section)
        lines += ["", f"`{section}`:", "", *table((k, v, explain(k, shared)) for k, v in values)]
    lines += ["", "`verl`, the keys that follow the recipe:", ""]
    lines += table(verl_rows(config, recipe_comments))
    return lines + [""]


def verl_rows(config: DictConfig, sources) -> Iterator[tuple[str, object, str]]:
    """verl's keys whose value is one of the recipe's, with the recipe's explanation."""
    for key, expression, _ in translation("rl"):
        if match := re.fullmatch(r"recipe\.([\w.]+)", expression):
            value = OmegaConf.select(config, f"verl.{key}")
            yield f"verl.{key}", value, f"`recipe.{match[1]}`: {explain(match[1], *sources)}"


def filters_section() -> list[str]:
    lines = ["## Filters", ""]
    lines += [
        "Samples are left out of the loss: response mask and loss mask become 0, their reward stays in the group's"
    ]
    lines += [
        "baseline. Groups are dropped whole and replaced by new prompts; with any recipe those in which a rollout or",
        "[the sandbox itself](sandbox.md#when-the-sandbox-itself-fails) failed. TensorBoard counts under `filters/`.",
        "",
    ]
    for function in (*sample_filters.FILTERS.values(), group_filters.group_reason):
        lines += docstring(function) + [""]
    return lines


def runs_section(paths: list[Path]) -> list[str]:
    """The tables of the runs that were seen of each recipe and option."""
    found = seen.runs()
    lines = ["", "## What has run", ""]
    lines += [
        "A run seen came to its end on engines, at the layout and the commit given; its values are a number a step",
        "(docs/recipe_runs.json, which `python -m docs.recipe_runs RUN...` writes). The embedded model is",
        "cold-started for a minute or two, and the tests let rewards differ by length (overlong_buffer) and drop no",
        "group by accuracy: such runs show that a recipe's parts work, not that it learns. `tests/recipe_cases.py`",
        "lists the recipes that the tests run on engines, at every change and nightly; `tests/rewards` and",
        "`tests/recipes` compare rewards, filters and advantages with values worked out from the papers.",
        "",
    ]
    lines += ["| recipe | run seen |", "|---|---|"]
    for path in paths:
        recipe = configuration(path.stem).recipe
        run = seen.format_run(found.pop((path.stem, recipe.advantage, "sync"), None))
        lines.append(f"| {path.stem} | {f'refused: needs {recipe.needs}' if recipe.needs else run} |")
    lines += ["", "Other advantages and pipelines, of whichever recipe they ran with:", ""]
    lines += ["| | recipe | run seen |", "|---|---|---|"]
    for what in OPTIONS:
        key, _, value = what.partition("=")
        place = {"advantage": 1, "pipeline": 2}[key.removeprefix("recipe.")]
        fitting = [run for name, run in found.items() if name[place] == value] or [None]
        lines += [f"| `{what}` | {run['recipe'] if run else ''} | {seen.format_run(run)} |" for run in fitting]
    return lines


def losses_section() -> list[str]:
    """Our policy losses, by their docstrings: the module imports torch and verl, and this page should not wait."""
    tree = ast.parse((Path(__file__).parents[1] / "retool_mcore/backends/verl/losses.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    lines = ["## Losses", ""]
    lines += [
        "`recipe.policy_loss` names one, with the aggregation over tokens that its paper has; another one is refused.",
        "`tests/recipes/test_policy_losses.py` compares values and gradients with the papers' formulas.",
        "",
        "| loss | whose | what is clipped |",
        "|---|---|---|",
        "| `vanilla` | verl's | each token's ratio (PPO), with a dual clip |",
        "| `retool` | ours | the same |",
        "| `gspo` | verl's | the sequence's ratio to the power 1 / length (arXiv 2507.18071, Eq. 5 and 7) |",
        "| `cispo` | verl's | each token's importance weight, not its gradient (arXiv 2506.13585, Eq. 4 and 5) |",
        "| `sequence_clip` | ours | the sequence's ratio, the response being one action |",
        "",
        "Dr. GRPO (arXiv 2503.20783) has no loss of its own: `recipe=dr_grpo` sets the advantage and the divisor.",
        "With `recipe=gspo` and `recipe=cispo` come the clips of their papers too: a sequence's ratio hardly ever",
        "leaves a range that is meant for tokens. Another loss of verl:",
        "`verl.actor_rollout_ref.actor.policy_loss.loss_mode=NAME`.",
        "",
        "The world-model option, a cross-entropy on observation tokens, is",
        "`recipe.policy_loss=retool recipe.observation_weight=0.1`; TensorBoard: `actor/observation_loss`.",
        "",
    ]
    for function in functions:
        lines += ["```", f"backends.verl.losses.{function.name}", "", ast.get_docstring(function), "```", ""]
    return lines


def render() -> str:
    """The page's text."""
    paths = sorted((CONFIG_DIR / "recipe").glob("*.yaml"))
    lines = ["# Recipes", ""]
    lines += ["Generated by `python -m docs.recipes` from `configs/`; change those, not this page.", ""]
    lines += ["| recipe | source | in one line |", "|---|---|---|"]
    lines += [f"| [{p.stem}](#{p.stem}) | {configuration(p.stem).recipe.paper} | {head(p)} |" for p in paths]
    lines += runs_section(paths)
    lines += ["", "## What every recipe starts from", "", prose(Recipe.__doc__), ""]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    for key, value, why in fields(Recipe):
        if value is not UNSET or key.endswith(".*"):
            lines.append(f"| `{key}` | {shown(value)} | {why.replace('|', chr(92) + '|')} |")
    lines.append("")
    for path in paths:
        lines += recipe_section(path)
    lines += filters_section() + losses_section() + dry_run_section()
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(render())
    print(f"wrote {PAGE}")
