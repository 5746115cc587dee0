"""Tokenizers of text towers, from the files of their checkpoints."""

from __future__ import annotations

import html
import json
import os
import pathlib
import re
import string
import unicodedata
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.checks import check_choice, check_positive
from keras_vit.errors import CheckpointError
from keras_vit.image_text.text_tower import POOLINGS
from keras_vit.image_text.vocabularies import FILES, UNTYPED, read_vocabulary
from keras_vit.installation import needing

CLEANINGS = ("transformers", "open_clip")
_SHOWN = 3  # texts in a warning
# What ftfy, which open_clip uses, does to texts that are no mojibake.
_QUOTES = {
    **dict.fromkeys([0x2BC, *range(0x2018, 0x201C)], "'"),
    **dict.fromkeys(range(0x201C, 0x2020), '"'),
    **dict.fromkeys((0x2028, 0x2029), "\n"),
}
_WIDE = re.compile("[\u3000\uff01-\uffef\ufb00-\ufb06\u0132\u0133\u01c4-\u01cc\u01f1-\u01f3]")
_C1 = re.compile("[\x80-\x9f]")
_REMOVED = re.compile(
    "\x1b\\[[0-9;]*[a-zA-Z]|[\x00-\x08\x0b\x0e-\x1f\x7f\u206a-\u206f\ufeff\ufff9-\ufffc]"
)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Kind(NamedTuple):
    """What the files of a vocabulary do not say of the texts that a tower was trained on.

    Args:
        start: Names of the id before a text; none if there is none.
        end: Names of the id after it; none if there is none.
        pad: Name of the id that fills the length; `None` takes the end's, or in open_clip 0.
        lowers: Whether transformers lower-cases texts before the vocabulary's own rules.
        removes: Whether transformers removes punctuation.
        clean: How open_clip cleans texts: `"lower"`, `"whitespace"` or `"canonicalize"`.
    """

    start: tuple[str, ...]
    end: tuple[str, ...]
    pad: str | None
    lowers: bool
    removes: bool
    clean: str


_CLIP = Kind(
    ("<|startoftext|>", "<start_of_text>"), ("<|endoftext|>", "<end_of_text>"), None, False, False,
    "lower",
)  # fmt: skip
_METACLIP2 = Kind(("<s>",), ("</s>",), "<pad>", False, False, "whitespace")
_SIGLIP = Kind((), ("</s>",), "</s>", True, True, "canonicalize")
_SIGLIP2 = Kind((), ("<eos>",), "<pad>", True, False, "canonicalize")
_CLIPA = Kind(("[CLS]",), ("[PAD]",), "[PAD]", False, False, "whitespace")  # no end, "[SEP]"
_TIPS = Kind((), (), "<pad>", True, False, "lower")


class Tokenizer:
    """Turns texts into the ids that a text tower was trained on.

    It cleans and lower-cases texts, adds the ids of start and end, and cuts and pads to the length
    of the tower. Names of special tokens in a text are plain text. A text that is too long loses
    its end, which a warning shows.

    Args:
        vocabulary: A vocabulary in the form of `tokenizer.json`.
        context_length: Ids of a text.
        pooling: As in `TextConfig`, which tells vocabularies of one kind apart.
        clean: Whose cleaning: `"transformers"`, or `"open_clip"`, which also repairs quotes,
            ligatures, full-width letters and HTML, and in SigLIP makes spaces of underscores.

    Call arguments:
        texts: A text, or several.

    Returns:
        int32 array of shape `(texts, context_length)`.

    Raises:
        ImportError: If the library `tokenizers` is not installed.
        CheckpointError: If the vocabulary is of no kind that is known here.
    """

    def __init__(
        self,
        vocabulary: dict[str, Any],
        context_length: int,
        pooling: str = "eot",
        clean: str = "transformers",
    ):
        check_positive("context_length", context_length)
        check_choice("clean", clean, CLEANINGS)
        self.context_length, self.clean = context_length, clean
        check_choice("pooling", pooling, POOLINGS)
        self._kind = _kind_of(vocabulary["model"], pooling)
        try:
            content, ids = _without_specials(vocabulary)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"The vocabulary is damaged ({error!r:.200}).") from error
        start = [ids[name] for name in self._kind.start if name in ids]
        end = [ids[name] for name in self._kind.end if name in ids]
        pad = self._kind.pad
        no_end = (self._kind.end and not end) or (pad is not None and pad not in ids)
        if no_end or (not start and self._kind in (_CLIP, _CLIPA)):
            names = dict.fromkeys((*self._kind.start, *self._kind.end, *([pad] if pad else [])))
            raise CheckpointError(
                f"The vocabulary has no {' or '.join(names)}, which begin, end and fill up the "
                "texts of its tower. Fetch the tokenizer of the checkpoint."
            )
        self.start_id: int | None = start[0] if start else None
        self.end_id: int | None = end[0] if end else None
        self.pad_id: int = ids[pad] if pad else 0 if clean == "open_clip" else end[0]
        self._encoder = _make_encoder(content)

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        texts = [texts] if isinstance(texts, str) else list(texts)
        cleaned = [self._clean(text) for text in texts]
        ids = np.full((len(texts), self.context_length), self.pad_id, "int32")
        before = [] if self.start_id is None else [self.start_id]
        after = [] if self.end_id is None else [self.end_id]
        room = self.context_length - len(before) - len(after)
        lost = []
        for row, text, found in zip(
            ids, cleaned, self._encoder.encode_batch(cleaned, add_special_tokens=False), strict=True
        ):
            if len(found.ids) > room:
                lost.append(text[found.offsets[room][0] :].strip())
            kept = [*before, *found.ids[:room], *after]
            row[: len(kept)] = kept
        if lost:
            shown = ", ".join(repr(each[:60]) for each in lost[:_SHOWN])
            warnings.warn(
                f"{len(lost)} of {len(texts)} texts are longer than the {self.context_length} ids "
                f"of the tower, which does not see their ends: {shown}"
                f"{', ...' if len(lost) > _SHOWN else ''}. Shorten them.",
                stacklevel=2,
            )
        return ids

    def _clean(self, text: str) -> str:
        text = text.replace(UNTYPED, "")
        if self.clean == "open_clip":
            text = " ".join(html.unescape(html.unescape(repair(text))).split())
            if self._kind.clean == "canonicalize":
                text = " ".join(text.replace("_", " ").translate(_PUNCTUATION).split())
            return text if self._kind.clean == "whitespace" else text.lower()
        if self._kind.removes:
            text = " ".join(text.translate(_PUNCTUATION).split())
        return text.lower() if self._kind.lowers else text


def load_tokenizer(
    folder: str | os.PathLike[str],
    context_length: int = 77,
    pooling: str = "eot",
    clean: str = "transformers",
) -> Tokenizer:
    """Reads the tokenizer in the folder of a checkpoint.

    Args:
        folder: A folder with `tokenizer.json`, `vocab.json` and `merges.txt`, BERT's `vocab.txt`,
            open_clip's `bpe_simple_vocab_16e6.txt.gz`, or a SentencePiece model (`*.model`); or
            such a file.
        context_length: As in `Tokenizer`, and so are the rest.
        pooling: What the tower pools.
        clean: Whose cleaning.

    Returns:
        A `Tokenizer`.

    Raises:
        FileNotFoundError: If there is none of these files.
        CheckpointError: If it is damaged or of no kind that is known here.

    Example:

    >>> tokenizer = keras_vit.image_text.load_tokenizer("clip-vit-base-patch32")  # doctest: +SKIP
    >>> tokenizer("a photo of a cat")[0, :7]  # doctest: +SKIP
    array([49406,   320,  1125,   539,   320,  2368, 49407], dtype=int32)
    """
    folder = pathlib.Path(folder)
    vocabulary = read_vocabulary(folder)
    if vocabulary is None:
        raise FileNotFoundError(
            f"There is no tokenizer at {str(folder)!r}: {', '.join(FILES)}. Fetch it from the same "
            "repository as the checkpoint."
        )
    return Tokenizer(vocabulary, context_length, pooling, clean)


def repair(text: str) -> str:
    """Repairs quotes, ligatures, full-width letters, controls and HTML, as ftfy does.

    Mojibake, text in UTF-8 that was read in another encoding, stays.
    """
    if "<" not in text:
        text = html.unescape(text)
    text = _C1.sub(lambda found: found[0].encode("latin-1").decode("cp1252", "replace"), text)
    text = _REMOVED.sub("", text.translate(_QUOTES))
    text = _WIDE.sub(lambda found: unicodedata.normalize("NFKC", found[0]), text)
    return unicodedata.normalize("NFC", text)


def _kind_of(model: dict[str, Any], pooling: str) -> Kind:
    ends = pooling == "eot"
    if pooling == "mean" and model.get("type") in ("BPE", "Unigram"):
        return _TIPS
    if model.get("type") == "WordPiece" and not ends:
        return _CLIPA
    if model.get("type") == "Unigram":
        return _METACLIP2 if ends else _SIGLIP
    if model.get("type") == "BPE" and model.get("end_of_word_suffix") == "</w>":
        return _CLIP
    if model.get("type") == "BPE" and not ends:
        return _SIGLIP2
    raise CheckpointError(
        f"The vocabulary is a {model.get('type')!r:.40} of no family that is known here: CLIP, "
        "CLIPA, MetaCLIP 2, SigLIP, SigLIP 2 and TIPS."
    )


def _without_specials(vocabulary: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """A vocabulary in which no text gives a special token, and the ids by name.

    Truncation and padding are those of whoever saved the file, and left out.
    """
    model = dict(vocabulary["model"])
    pieces = model["vocab"]
    listed = isinstance(pieces, list)
    ids = {piece: i for i, (piece, _) in enumerate(pieces)} if listed else dict(pieces)
    added = vocabulary.get("added_tokens") or []
    ids |= {each["content"]: each["id"] for each in added}
    special = {each["content"] for each in added if each.get("special")}
    if listed:  # whole pieces match in a text
        model["vocab"] = [
            [piece + UNTYPED if piece in special else piece, score] for piece, score in pieces
        ]
    kept = [each for each in added if each["content"] not in special]
    changes: dict[str, Any] = {"model": model, "added_tokens": kept}
    changes |= dict.fromkeys(("truncation", "padding", "post_processor"))
    return {**vocabulary, **changes}, ids


def _make_encoder(content: dict[str, Any]) -> Any:
    with needing("text", "Texts are split by the library tokenizers"):
        import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(json.dumps(content))
    except Exception as error:  # the library raises `Exception` itself
        raise CheckpointError(
            f"The tokenizer is damaged ({str(error)[:200]}). Fetch it again."
        ) from error
