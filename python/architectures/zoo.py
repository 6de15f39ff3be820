"""The list of architectures: networks that people use, each with seeded weights and an example of its inputs."""

from __future__ import annotations

from .architecture import Architecture
from .generation import GENERATION
from .language import LANGUAGE
from .pictures import PICTURES
from .plain import PLAIN
from .quantised import QUANTISED
from .sound import SOUND

ARCHITECTURES: tuple[Architecture, ...] = (*PICTURES, *LANGUAGE, *GENERATION, *SOUND, *PLAIN, *QUANTISED)


def named(name: str) -> Architecture:
    """The architecture of this name; a ValueError where there is none."""
    found = next((each for each in ARCHITECTURES if each.name == name), None)
    if found is None:
        raise ValueError(f"there is no architecture {name!r}, but {', '.join(each.name for each in ARCHITECTURES)}")
    return found
