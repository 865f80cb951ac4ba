"""Reads the tree that Hugging Face's hub client leaves: `models--ORG--NAME/{blobs,refs,snapshots/COMMIT}`.

Such a tree is one adapter named `ORG/NAME`; its files are those of the commit that `refs/main` names. A new commit
moves `refs/main`, so the adapter gets other files under the same name.
"""

import os
import re

from gateway.control.files import FileLayer, opened
from gateway.control.verdicts import Invalid

_PREFIX = "models--"
_OTHER_KINDS = ("datasets--", "spaces--")
_COMMIT = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}")


def is_other_tree(name: str) -> bool:
    """Whether the hub client keeps something else than a model under this name."""
    return name.startswith(_OTHER_KINDS)


def hub_name(folder_name: str, entries: set[str]) -> str | None:
    """`org/alpha` for a folder `models--org--alpha` that holds snapshots; None for any other folder."""
    if not folder_name.startswith(_PREFIX) or "snapshots" not in entries:
        return None
    parts = folder_name.removeprefix(_PREFIX).split("--")
    return "/".join(parts) if all(part and not part.startswith(".") for part in parts) else None


def current_snapshot(tree: str, root: str, layer: FileLayer) -> str:
    """The folder of the commit that refs/main names, or of the only commit there is. Raises Invalid or OSError."""
    commits = sorted(entry.name for entry in layer.listing(f"{tree}/snapshots") if entry.is_folder)
    commits = [commit for commit in commits if _COMMIT.fullmatch(commit)]
    try:
        with opened(f"{tree}/refs/main", root, layer) as (descriptor, _):
            commit = os.read(descriptor, 256).decode("ascii", "replace").strip()
    except FileNotFoundError:
        if len(commits) != 1:
            reason = "this hub cache has no refs/main to tell which snapshot is meant: download it without a revision"
            raise Invalid(reason, "config") from None
        commit = commits[0]
    if not _COMMIT.fullmatch(commit):
        raise Invalid("refs/main of this hub cache names no commit: download it again", "config")
    return f"{tree}/snapshots/{commit}"
