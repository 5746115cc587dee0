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
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from keras_vit.checks import check_choice, check_positive, is_broken
from keras_vit.errors import CheckpointError
from keras_vit.installation import needing
from keras_vit.reading import refusing
from keras_vit.texts.text_tower import POOLINGS
from keras_vit.texts.vocabularies import FILES, UNTYPED, find_vocabulary, read_vocabulary

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
_MAX_ID = (1 << 31) - 1
_LETTERS = 16  # of a long text, for every id of the tower, that are split at first
_MAX_LETTERS = 1 << 17  # that are split at once; the library takes up to 800 bytes for each
# The last letter of a word. What follows changes no id of what is before it: cleaning and
# normalisation treat letters or words by themselves, and so do pieces without spaces inside them.
_END = re.compile(r"\w(?=[ \t\n\r]\w)")
_SPACES = r" \t\n\r\u2581"
_BYTES_OF_SPACES = r"\u0120\u0109\u010a\u010d"  # in vocabularies of bytes


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
        pad: Name of the id that fills the length, as which a text may have it too; `None` takes
            that of the family.

    Attributes:
        cuts: Whether a text that is too long loses its end; otherwise it is an error.

    Call arguments:
        texts: A text, or several.

    Returns:
        int32 array of shape `(texts, context_length)`.

    Raises:
        ImportError: If the library `tokenizers` is not installed.
        CheckpointError: If the vocabulary is of no kind that is known here.
        ValueError: If a text is no text, cannot be split, or is too long and not cut; the message
            has its position.
    """

    cuts = True

    def __init__(
        self,
        vocabulary: dict[str, Any],
        context_length: int,
        pooling: str = "eot",
        clean: str = "transformers",
        pad: str | None = None,
    ):
        check_positive("context_length", context_length)
        check_choice("clean", clean, CLEANINGS)
        self.context_length, self.clean = context_length, clean
        check_choice("pooling", pooling, POOLINGS)
        with refusing("The vocabulary", kind=CheckpointError):
            content, ids = _without_specials(vocabulary)
        self._kind = _kind_of(content["model"], pooling)
        start = [ids[name] for name in self._kind.start if name in ids]
        end = [ids[name] for name in self._kind.end if name in ids]
        if pad is not None and pad in ids:
            switches = ["single_word", "lstrip", "rstrip", "normalized", "special"]
            content["added_tokens"] += [
                {"id": ids[pad], "content": pad, **dict.fromkeys(switches, False)}
            ]
        pad = pad or self._kind.pad
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
        is_of_bytes = "ByteLevel" in json.dumps(content.get("pre_tokenizer"))
        spaces = _SPACES + _BYTES_OF_SPACES * is_of_bytes
        self._has_words = not any(map(re.compile(f"[^{spaces}][{spaces}]").search, ids))

    def __call__(self, texts: str | Sequence[str]) -> np.ndarray:
        texts = check_texts(texts)
        ids = np.full((len(texts), self.context_length), self.pad_id, "int32")
        before = [] if self.start_id is None else [self.start_id]
        after = [] if self.end_id is None else [self.end_id]
        room = self.context_length - len(before) - len(after)
        lost = []
        encoded = self._encode(list(enumerate(texts)), _LETTERS)
        for number, (row, (text, found)) in enumerate(zip(ids, encoded, strict=True)):
            if len(found.ids) > room and not self.cuts:
                raise ValueError(
                    f"Text {number}, {text!r:.80}, is longer than the {self.context_length} ids "
                    "that the tower takes, with start and end. Shorten it."
                )
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

    def _encode(self, texts: list[tuple[int, str]], letters: int) -> list[tuple[str, Any]]:
        """Cleans and splits numbered texts; of long ones words with more ids than are kept."""
        parts = [self._beginning(*each, letters) for each in texts]
        has_tags = ["<" in text for _, text in texts]
        cleaned = list(map(self._clean, parts, has_tags))
        try:
            found = _call(self._encoder.encode_batch, cleaned, add_special_tokens=False)
        except ValueError as error:
            if len(texts) > 1:
                return [self._encode([each], letters)[0] for each in texts]
            raise ValueError(
                f"Text {texts[0][0]}, {cleaned[0]!r:.80}, has what the vocabulary cannot express "
                f"({error}). Change it, or fetch the tokenizer of the checkpoint again."
            ) from error
        rows = list(zip(cleaned, found, strict=True))
        for i, (part, each) in enumerate(zip(parts, texts, strict=True)):
            if len(found[i].ids) <= self.context_length and len(part) < len(each[1]):
                rows[i] = self._encode([each], 4 * letters)[0]
        return rows

    def _beginning(self, number: int, text: str, letters: int) -> str:
        """The words of a text up to the first that ends after so many letters for each id."""
        end = _END.search(text, letters * self.context_length) if self._has_words else None
        part = text if end is None else text[: end.end()]
        if len(part) > _MAX_LETTERS:
            raise ValueError(
                f"Text {number}, {text[:20]!r}..., cannot be cut at the end of a word, and is too "
                f"long to be split: {len(part):,} letters for {self.context_length} ids. Pass at "
                f"most {_MAX_LETTERS:,}."
            )
        return part

    def _clean(self, text: str, has_tags: bool) -> str:
        text = text.replace(UNTYPED, "")
        if self.clean == "open_clip":
            text = " ".join(html.unescape(html.unescape(repair(text, has_tags))).split())
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
    pad: str | None = None,
) -> Tokenizer:
    """Reads the tokenizer in the folder of a checkpoint.

    Args:
        folder: A folder with `tokenizer.json`, `vocab.json` and `merges.txt`, BERT's `vocab.txt`,
            open_clip's `bpe_simple_vocab_16e6.txt.gz`, or a SentencePiece model (`*.model`); or
            such a file.
        context_length: As in `Tokenizer`, and so are the rest.
        pooling: What the tower pools.
        clean: Whose cleaning.
        pad: Name of the id that fills the length.

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
    path = find_vocabulary(pathlib.Path(folder))
    if path is None:
        raise FileNotFoundError(
            f"There is no tokenizer at {str(folder)!r}: {', '.join(FILES)}. Fetch it from the same "
            "repository as the checkpoint."
        )
    vocabulary = read_vocabulary(path)
    try:
        return Tokenizer(vocabulary, context_length, pooling, clean, pad)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def check_texts(texts: Any, name: str = "texts") -> list[str]:
    """The texts of an argument, one or several.

    Raises:
        ValueError: If one is no text of Unicode; the message has its position.
    """
    try:
        several = [texts] if isinstance(texts, str) else list(texts)
    except TypeError:
        raise ValueError(f"`{name}` must be texts. Received: {texts!r:.80}.") from None
    for number, text in enumerate(several):
        if not isinstance(text, str) or is_broken(text):
            raise ValueError(
                f"`{name}` must be texts of Unicode, without halves of surrogate pairs. Received: "
                f"number {number}, {text!r:.80}."
            )
    return several


def repair(text: str, has_tags: bool | None = None) -> str:
    """Repairs quotes, ligatures, full-width letters, controls and HTML, as ftfy does.

    Mojibake, text in UTF-8 that was read in another encoding, stays. Entities of HTML stay where
    there are tags: of a part of a text, `has_tags` says it for the whole.
    """
    if not ("<" in text if has_tags is None else has_tags):
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
    if not all(isinstance(piece, str) and type(i) is int for piece, i in ids.items()):
        raise ValueError("a piece is no text, or has no whole number")
    if not all(0 <= i <= _MAX_ID for i in ids.values()):
        raise ValueError(f"an id is not from 0 to {_MAX_ID}")
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

    with refusing("The tokenizer", kind=CheckpointError):
        return _call(tokenizers.Tokenizer.from_str, json.dumps(content))


def _call(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Calls the library, whose errors are `Exception` itself and panics of Rust; a `ValueError`."""
    try:
        return function(*args, **options)
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise ValueError(f"{error!s:.200}") from error
        raise
