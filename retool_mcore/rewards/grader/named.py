"""Values with names in a list: `x = 1, y = 2`, points written as equations, which order counts."""

import re
from dataclasses import replace
from string import ascii_lowercase

from retool_mcore.rewards.grader import relations
from retool_mcore.rewards.grader.nodes import Node


def name_of(node: Node) -> str | None:
    if node.kind == "relation" and set(node.operators) == {"="} and relations.assigned(node, is_truth=True) is not None:
        return node.items[0].text
    return None


def values(node: Node, in_order: bool = False) -> tuple[Node, ...]:
    """The items without names; in_order: as their names come in the alphabet, where those are `x` and `y`, or so."""
    names = [name_of(item) for item in node.items]

    def value(item: Node) -> Node:
        equation = item.kind == "relation" and set(item.operators) == {"="}
        return (relations.assigned(item, is_truth=True) if equation else None) or item

    by_name = in_order and None not in names and "".join(sorted(names)) in ascii_lowercase
    return tuple(value(item) for item in (sorted(node.items, key=name_of) if by_name else node.items))


def names_of(node: Node) -> set[str]:
    """The letters to which the items of a list give values, without indices."""
    return {re.split("[_(]", name)[0] for item in node.items if (name := name_of(item))}


def differ_in_names(a: Node, t: Node) -> bool:
    names, others = names_of(a), names_of(t)
    return bool(names and others and names != others)


def distinct_names(node: Node) -> bool:
    names = [name_of(item) for item in node.items]
    return None not in names and len(set(names)) == len(names) > 1


def points(node: Node) -> Node:
    """`x=2, y=7 or x=4, y=1` as the pairs (2,7) and (4,1); any other node as it is."""
    if node.kind != "list" or len(node.items) < 4:
        return node
    names = [name_of(item) for item in node.items]
    size = names.index(names[0], 1) if names[0] in names[1:] else 0
    if None in names or size < 2 or len(set(names)) != size or names != names[:size] * (len(names) // size):
        return node
    groups = [Node("list", "", node.items[n : n + size], join=",") for n in range(0, len(names), size)]
    pairs = [values(group, True) for group in groups]
    texts = [f"({','.join(item.text for item in pair)})" for pair in pairs]
    return replace(
        node, items=tuple(Node("bracket", x, pair, brackets="()") for x, pair in zip(texts, pairs, strict=True))
    )


def chain(relation: Node) -> tuple[Node, ...]:
    """The values of `a=b=5`, one for each letter; () for other relations."""
    names = [item.text for item in relation.items[:-1]]
    letters = all(relations.NAME.fullmatch(name) for name in names) and len(set(names)) == len(names) > 1
    return (relation.items[-1],) * len(names) if letters and set(relation.operators) == {"="} else ()


def order_counts(a: Node, t: Node) -> bool:
    """Names on one side only: `x = 1, y = 2` is `1, 2` and not `2, 1`. Roots of one name come in any order."""
    names = [[name_of(item) for item in side.items] for side in (a, t)]
    named = [sum(name is not None for name in side) for side in names]
    if not any(named) or all(n == len(side) for n, side in zip(named, names, strict=True)):
        return False
    full = names[0] if named[0] else names[1]
    return None not in full and len({name.split("_")[0] for name in full}) == len(full)


def group(node: Node) -> Node:
    """`p = 5, q = 2` inside a list of such groups is the pair (5, 2)."""
    if node.kind == "list" and all(name_of(item) for item in node.items):
        return Node("bracket", node.text, values(node), brackets="()")
    return node
