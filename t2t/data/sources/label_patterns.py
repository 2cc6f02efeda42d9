"""Patterns such as {label}_*.jpg for paths of images that carry labels."""

import os
import re
from collections import Counter
from collections.abc import Sequence

from t2t.errors import UserError

LABEL = "{label}"
_TOKENS = {
    "*": "[^/]*?",
    "#": r"(?<!\d)\d+",
    "?": "[^/]",
    LABEL: "(?P<label>[^/]+)",
}
HOW_TO_WRITE = (
    "write {label} where the label is, * for any other characters, # for a number, as "
    "in '{label}_*.jpg' for cat_1.jpg or '{label}/*' for the folder of each image"
)
# In the order of preference.
_SUGGESTED = (
    *("{label}_#", "{label}-#", "{label} (#)", "{label} #", "{label}.#", "{label}#"),
    *("{label}_#_#", "{label}-#-#", "{label}_*", "{label}-*", "{label}__*"),
    *("{label}.*", "#_{label}", "#-{label}", "*_{label}", "*-{label}", "*__{label}"),
)
_CAMERAS = ("img", "dsc", "dscn", "dscf", "image", "photo", "p", "pict", "screenshot")
_MAX_SHOWN = 5
_MAX_READ = 5_000


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern for the end of a path.

    Folders are written with slashes: {label}/* is the folder that an image is in.
    """
    if pattern.count(LABEL) != 1:
        raise UserError(
            f"--label-pattern {pattern!r} has {LABEL} {pattern.count(LABEL)} times: "
            f"{HOW_TO_WRITE}."
        )
    words = re.split(r"(\{label\}|[*#?])", pattern.replace("\\", "/").lstrip("/"))
    expression = "".join(_TOKENS.get(word, re.escape(word)) for word in words)
    return re.compile(f"(?:.*/)?{expression}", re.IGNORECASE | re.DOTALL)


def suggest_pattern(names: Sequence[str]) -> tuple[str, list[str]] | None:
    """A pattern for file names that evidently carry labels, and its classes."""
    stems = [os.path.splitext(os.path.basename(name)) for name in names[:_MAX_READ]]
    endings = {suffix for _, suffix in stems}
    ending = endings.pop() if len(endings) == 1 else ".*"
    best: tuple[int, str, list[str]] | None = None
    for candidate in _SUGGESTED:
        match = compile_pattern(candidate).fullmatch
        found = [match(stem) for stem, _ in stems]
        if not all(found):
            continue
        counts = Counter(each["label"] for each in found if each)
        if is_likely(counts) and (best is None or len(counts) < best[0]):
            best = len(counts), f"{candidate}{ending}", sorted(counts)
    return None if best is None else best[1:]


def is_likely(counts: Counter[str]) -> bool:
    """Whether these look like the labels of images, and not like numbers or cameras."""
    are_words = all(re.search(r"[^\W\d_]", label) for label in counts)
    are_cameras = all(label.lower().strip("_- ") in _CAMERAS for label in counts)
    several = sum(num > 1 for num in counts.values()) > len(counts) / 2
    return len(counts) > 1 and are_words and several and not are_cameras


def suggestion(names: Sequence[str]) -> str:
    """A sentence that names the option for file names that carry labels, or nothing.

    It starts with a space.
    """
    found = suggest_pattern(names)
    if found is None:
        return ""
    pattern, classes = found
    shown = ", ".join(classes[:_MAX_SHOWN])
    more = f" and {len(classes) - _MAX_SHOWN} more" if len(classes) > _MAX_SHOWN else ""
    return (
        f" If the labels are in the file names, add --label-pattern '{pattern}', which "
        f"gives {len(classes)} classes ({shown}{more})."
    )
