"""Files of vocabularies, read in the form of `tokenizer.json`."""

from __future__ import annotations

import base64
import gzip
import io
import pathlib
import re
import struct
from collections.abc import Iterator
from typing import Any

from keras_vit.errors import CheckpointError
from keras_vit.reading import read_bytes, read_json, read_text, refusing

FILES = (
    *("tokenizer.json", "vocab.json and merges.txt", "vocab.txt", "bpe_simple_vocab_16e6.txt.gz"),
    "*.model",
)
UNTYPED = "\uffff"  # in the names of pieces that no text may match; taken out of texts
_MAX_BYTES = 1 << 26  # the tokenizer of SigLIP 2 has half of it
_MAX_PIECE = 256  # letters
_MERGES = 48_894  # of CLIP's file, which has more
# CLIP's rules: https://github.com/openai/CLIP, `simple_tokenizer.py`.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SPECIAL = ("<|startoftext|>", "<|endoftext|>", "<start_of_text>", "<end_of_text>")
_NORMAL, _UNKNOWN, _USER, _BYTE = 1, 2, 4, 6  # types of pieces in SentencePiece


def find_vocabulary(path: pathlib.Path) -> pathlib.Path | None:
    """The file at a path, or the first of `FILES` in a folder; `None` if the folder has none."""
    if not path.is_dir():
        return path
    names = ("tokenizer.json", "vocab.json", "vocab.txt", "bpe_simple_vocab_16e6.txt.gz")
    found = [path / name for name in names if (path / name).is_file()]
    return next(iter(found + sorted(path.glob("*.model"))), None)


def read_vocabulary(path: pathlib.Path) -> dict[str, Any]:
    """Reads a file of `FILES` in the form of `tokenizer.json`.

    Raises:
        FileNotFoundError: If there is no such file.
        CheckpointError: If the file is damaged.
    """
    with refusing(path, "is no vocabulary", kind=CheckpointError):
        return _read(path)


def _read(path: pathlib.Path) -> dict[str, Any]:
    if path.suffix == ".gz":
        return _read_merges(path)
    if path.suffix == ".txt":
        return _bert(read_text(path, _MAX_BYTES).splitlines())
    if path.suffix == ".model":
        return _read_sentencepiece(read_bytes(path, _MAX_BYTES))
    content = read_json(path, _MAX_BYTES)
    if path.name == "vocab.json":
        text = read_text(path.with_name("merges.txt"), _MAX_BYTES)
        merges = [line for line in text.splitlines() if line and not line.startswith("#version")]
        return _clip(content, merges)
    if not isinstance(content["model"]["vocab"], dict | list):
        raise ValueError("its vocabulary is no table")
    return dict(content)


def _bert(pieces: list[str]) -> dict[str, Any]:
    """BERT's vocabulary without case, a piece per line, by https://arxiv.org/abs/1810.04805."""
    special = [(i, name) for i, name in enumerate(pieces) if re.fullmatch(r"\[[A-Z]+\]", name)]
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": name, "special": True} for i, name in special],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {name: i for i, name in enumerate(pieces)},
        },
    }  # fmt: skip


def _sequence(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", name: list(steps)}


def _clip(vocab: dict[str, int], merges: list[str]) -> dict[str, Any]:
    special = [name for name in _SPECIAL if name in vocab]
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocab[name], "content": name, "special": True} for name in special],
        "normalizer": _sequence(
            "normalizers",
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ),
        "pre_tokenizer": _sequence(
            "pretokenizers",
            {"type": "Split", "pattern": {"Regex": _WORDS}, "behavior": "Removed", "invert": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ),
        "model": {
            "type": "BPE",
            "end_of_word_suffix": "</w>",
            "vocab": vocab,
            "merges": [line.split(" ") for line in merges],
        },
    }


def _read_merges(path: pathlib.Path) -> dict[str, Any]:
    """CLIP's vocabulary from its merges alone: bytes, bytes at the ends of words, merges."""
    with gzip.GzipFile(fileobj=io.BytesIO(read_bytes(path, _MAX_BYTES))) as file:
        lines = file.read(_MAX_BYTES).decode("utf-8").splitlines()[1 : _MERGES + 1]
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = [*map(chr, printable), *(chr(256 + number) for number in range(len(others)))]
    names = [*letters, *(f"{letter}</w>" for letter in letters)]
    names += ["".join(line.split(" ")) for line in lines]
    names += _SPECIAL[2:]
    return _clip({name: number for number, name in enumerate(names)}, lines)


def _read_sentencepiece(content: bytes) -> dict[str, Any]:
    """A model of SentencePiece, one message of protocol buffers: `sentencepiece_model.proto`."""
    pieces: list[tuple[str, float, int]] = []
    trainer: dict[int, Any] = {}
    rules: dict[int, Any] = {}
    for field, value in _fields(content):
        if field == 1:
            piece = dict(_fields(value))
            score = struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0
            pieces.append((piece[1].decode("utf-8"), score, piece.get(3, _NORMAL)))
        elif field == 2:
            trainer = dict(_fields(value))
        elif field == 3:
            rules = dict(_fields(value))
    added = [
        {"id": i, "content": name, "special": kind != _USER, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for i, (name, _, kind) in enumerate(pieces) if kind not in (_NORMAL, _BYTE)
    ]  # fmt: skip
    unknown = next((i for i, (_, _, kind) in enumerate(pieces) if kind == _UNKNOWN), None)
    if unknown is None:
        raise ValueError("it has no piece for what it does not know")
    fallback = bool(trainer.get(35, 0))
    if trainer.get(3, 1) == 2:
        model = _bpe(pieces, unknown, fallback)
    else:
        scores = [[name, score] for name, score, _ in pieces]
        model = {"type": "Unigram", "unk_id": unknown, "byte_fallback": fallback, "vocab": scores}
    normalizers: list[dict[str, Any]] = []
    if rules.get(2):
        charsmap = base64.b64encode(rules[2]).decode()
        normalizers.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if rules.get(4, 1):
        normalizers.append({"type": "Strip", "strip_left": True, "strip_right": True})
        normalizers.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": _sequence("normalizers", *normalizers),
        "pre_tokenizer": {
            "type": "Metaspace",
            "replacement": "\u2581",
            "prepend_scheme": "always" if rules.get(3, 1) else "never",
            "split": False,
        },
        "model": model,
    }


def _bpe(pieces: list[tuple[str, float, int]], unknown: int, fallback: bool) -> dict[str, Any]:
    """Merges are all splits of a piece into two, the pieces with the best scores first."""
    ids = {name: i for i, (name, _, kind) in enumerate(pieces) if kind == _NORMAL}
    merges = [
        (-score, i, name[:cut], name[cut:])
        for i, (name, score, kind) in enumerate(pieces)
        if kind == _NORMAL
        for cut in range(1, min(len(name), _MAX_PIECE))
        if name[:cut] in ids and name[cut:] in ids
    ]
    return {
        "type": "BPE",
        "unk_token": pieces[unknown][0],
        "fuse_unk": True,
        "byte_fallback": fallback,
        "vocab": {name: i for i, (name, _, _) in enumerate(pieces)},
        "merges": [list(merge[2:]) for merge in sorted(merges, key=lambda merge: merge[:2])],
    }


def _fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message, in its order."""
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = content[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    while position < len(content):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(kind) or (varint() if kind == 2 else None)
        if size is None or position + size > len(content):
            raise ValueError("it is no message of protocol buffers")
        yield key >> 3, content[position : position + size]
        position += size
