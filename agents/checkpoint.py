"""Policies and checkpoints on disk: a zip of weights and plain JSON, nothing in it that can run code.

A policy file holds the weights and what they fit; a checkpoint also holds the optimizer, the random state and
what the run had measured, so that it can go on.
"""

import io
import json
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from atoffer_rl.agents.hyperparameters import MAX_HIDDEN
from atoffer_rl.agents.training_state import check_training_state
from atoffer_rl.envs.space_hash import check_space_hash
from atoffer_rl.errors import FileError, LogError, PolicyError
from atoffer_rl.json_text import parse_json
from atoffer_rl.quote import quote
from atoffer_rl.regular_file import read_regular
from atoffer_rl.whole_file import os_reason, replacing

FORMAT = "atoffer-policy-1"
SHIPPED_POLICY = Path(__file__).parent / "policies" / "shipped.zip"
MAX_BYTES = 2**28
"""A policy takes a few hundred kilobytes; what claims more is not unpacked."""
MAX_PARSED_BYTES = 2**22
"""Of what is parsed into objects, which take many times the bytes."""
PARSED = ("about.json", "data.pkl")
LARGEST_WEIGHT = 1000.0
"""Weights are of order one; with none beyond this, no activation or squared error overflows."""
EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time stamp of every member: same weights, same bytes."""


@dataclass(frozen=True)
class Checkpoint:
    """A policy, and where a run stood.

    Attributes:
        weights: The policy's parameters by name.
        hidden: Width of its hidden layers.
        space: Hash of the observations that the weights were trained for.
        run: The run's configuration and progress as plain JSON values; empty for a policy alone.
        optimizer: The optimizer's state; empty for a policy alone.
        random_state: Torch's random state; None for a policy alone.
    """

    weights: Mapping[str, Tensor]
    hidden: int
    space: str
    run: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    random_state: Tensor | None = None

    @property
    def resumable(self) -> bool:
        """Whether a run can go on from here."""
        return bool(self.run)

    def policy_alone(self) -> "Checkpoint":
        """The weights without the run."""
        return Checkpoint(self.weights, self.hidden, self.space)


def save_checkpoint(checkpoint: Checkpoint, path: Path, remedy: str = "make room, or use another folder") -> None:
    """Write `checkpoint` to `path`; the file is complete or the earlier one stays.

    Args:
        checkpoint: What to write.
        path: The file.
        remedy: What to do where it cannot be written.

    Raises:
        LogError: If it cannot be written.
    """
    tensors: dict[str, Any] = {"weights": dict(checkpoint.weights)}
    if checkpoint.resumable:
        tensors |= {"optimizer": dict(checkpoint.optimizer), "random_state": checkpoint.random_state}
    about = {
        "format": FORMAT,
        "hidden": checkpoint.hidden,
        "space": checkpoint.space,
        "run": dict(checkpoint.run),
    }
    try:
        with replacing(path) as raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as file:
            _add(file, "about.json", json.dumps(about, indent=1).encode())
            _add(file, "tensors.pt", _tensor_bytes(tensors))
    except OSError as error:
        reason = error.strerror or error
        raise LogError(f"cannot write checkpoint {path} ({reason}): {remedy}") from error


def load_checkpoint(path: Path) -> Checkpoint:
    """The policy or checkpoint in `path`.

    Raises:
        PolicyError: If it is missing, damaged, or was trained for another space.
    """
    content = _content(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say of a damaged file, the error says
            return _unpacked(path, content)
    except PolicyError:
        raise
    except Exception as error:  # zipfile and torch raise whatever their parts do
        raise PolicyError(f"{path} is damaged or not a checkpoint: use another, or train it again") from error


def _unpacked(path: Path, content: bytes) -> Checkpoint:
    with _zip_of(path, content) as file:
        about, tensors = parse_json(file.read("about.json")), file.read("tensors.pt")
    if about["format"] != FORMAT:
        raise PolicyError(f"{path} is of format {quote(about['format'])}, this version reads {FORMAT}: train it again")
    _zip_of(path, tensors).close()
    parts = torch.load(io.BytesIO(tensors), map_location="cpu", weights_only=True)
    checkpoint = Checkpoint(
        weights=_weights(parts["weights"]),
        hidden=_width(about["hidden"]),
        space=str(about["space"]),
        run=dict(about["run"]),
        optimizer=parts.get("optimizer", {}),
        random_state=parts.get("random_state"),
    )
    check_space_hash(checkpoint.space)
    if checkpoint.resumable:
        check_training_state(checkpoint.weights, checkpoint.hidden, checkpoint.optimizer, checkpoint.random_state)
    return checkpoint


def _zip_of(path: Path, content: bytes) -> zipfile.ZipFile:
    """The zip that `content` is, a checkpoint's or torch's own within it.

    Raises:
        PolicyError: If it unpacks to more than a policy takes.
    """
    file = zipfile.ZipFile(io.BytesIO(content))
    parsed = [member.file_size for member in file.infolist() if member.filename.endswith(PARSED)]
    if sum(member.file_size for member in file.infolist()) > MAX_BYTES or sum(parsed) > MAX_PARSED_BYTES:
        raise PolicyError(f"{path} unpacks to more than a policy takes: use another")
    return file


def _content(path: Path) -> bytes:
    """What the file holds.

    Raises:
        PolicyError: If it cannot be read, or is far larger than a policy.
    """
    try:
        return read_regular(path, MAX_BYTES)
    except FileError as error:
        raise PolicyError(f"cannot read policy: {error}, a checkpoint.zip") from error
    except FileNotFoundError as error:
        raise PolicyError(
            f"there is no policy {path}: give the path of a checkpoint.zip, which a run keeps from its first rollout on"
        ) from error
    except OSError as error:
        raise PolicyError(f"cannot read policy {path}: {os_reason(error)}") from error
    except ValueError as error:
        raise PolicyError(f"there can be no policy {str(path)!r}: {error}") from error


def _weights(value: Any) -> dict[str, Tensor]:
    weights: dict[str, Tensor] = dict(value)
    if not all(isinstance(name, str) for name in weights):
        raise ValueError("weights have names")
    if sum(tensor.numel() for tensor in weights.values()) > MAX_BYTES // 4:
        raise ValueError("weights repeat what they hold")
    for tensor in weights.values():
        if not tensor.is_floating_point() or not bool((tensor.abs() <= LARGEST_WEIGHT).all()):
            raise ValueError(f"weights are numbers up to {LARGEST_WEIGHT}")
    return weights


def _width(value: Any) -> int:
    if type(value) is not int or not 1 <= value <= MAX_HIDDEN:
        raise ValueError(f"hidden layers cannot have {value!r} units")
    return value


def _add(file: zipfile.ZipFile, name: str, content: bytes) -> None:
    file.writestr(zipfile.ZipInfo(name, EPOCH), content, zipfile.ZIP_DEFLATED)


def _tensor_bytes(tensors: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(tensors), buffer)
    return buffer.getvalue()
