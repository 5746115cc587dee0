"""The other side of `scripts/parity-towers`: random towers of transformers and open_clip.

Writes a folder for each case: the checkpoint as its project saves it, and `answers.npz` with
images, ids, features, logits and loss; and another, whose checkpoint has the gradients of the loss
in the places of the weights.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from scripts.peers.parity_theirs import transformers  # first: it makes open_clip importable

import open_clip  # isort: skip
from transformers.initialization import no_init_weights  # isort: skip

CLIP_STATISTICS = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5,) * 3, (0.5,) * 3)
_TEXT: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 200, "max_position_embeddings": 12,
}  # fmt: skip
_IMAGE: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
_SIGLIP_IMAGE = {**_IMAGE, "hidden_size": 32}
_TIPS_IMAGE = {key: _SIGLIP_IMAGE[key] for key in _IMAGE if key != "intermediate_size"}
_END = {"eos_token_id": 199, "bos_token_id": 198}
# Class, configuration, statistics of pixels.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "clip-old-end": ("CLIP", {
        "text_config": {**_TEXT, "eos_token_id": 2}, "vision_config": _IMAGE, "projection_dim": 24,
    }, CLIP_STATISTICS),
    "clip": ("CLIP", {
        "text_config": {**_TEXT, **_END, "hidden_act": "gelu"},
        "vision_config": {**_IMAGE, "hidden_act": "gelu"}, "projection_dim": 24,
    }, CLIP_STATISTICS),
    "metaclip2": ("MetaClip2", {
        "text_config": {**_TEXT, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1},
        "vision_config": _IMAGE, "projection_dim": 24,
    }, CLIP_STATISTICS),
    "siglip": ("Siglip", {"text_config": _TEXT, "vision_config": _SIGLIP_IMAGE}, HALF),
    "aimv2-lit": ("Aimv2", {
        "text_config": {**_TEXT, **_END}, "vision_config": _IMAGE, "projection_dim": 24,
    }, CLIP_STATISTICS),
    "tipsv2": ("Tipsv2", {
        "text_config": _TEXT,
        "vision_config": {**_TIPS_IMAGE, "mlp_ratio": 2},
    }, ((0.0,) * 3, (1.0,) * 3)),
    "tipsv2-gated": ("Tipsv2", {  # as g/14
        "text_config": _TEXT,
        "vision_config": {**_TIPS_IMAGE, "use_swiglu_ffn": True},
    }, ((0.0,) * 3, (1.0,) * 3)),
    "siglip-wide": ("Siglip", {  # as SigLIP 2 g-opt
        "text_config": {**_TEXT, "projection_size": 48}, "vision_config": _IMAGE,
    }, HALF),
}  # fmt: skip
FULL_TRANSFORMERS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "clip-b16": ("CLIP", {
        "text_config": {"eos_token_id": 2}, "vision_config": {"patch_size": 16},
        "projection_dim": 512,
    }, CLIP_STATISTICS),
    "siglip-b16": ("Siglip", {}, HALF),
}  # fmt: skip
_OPEN_TEXT: dict[str, Any] = {
    "context_length": 12, "vocab_size": 200, "width": 32, "heads": 4, "layers": 2,
}  # fmt: skip
_OPEN_IMAGE = {"image_size": 32, "layers": 2, "width": 48, "head_width": 12, "patch_size": 8}
_TIMM = {"timm_model_name": "test_vit3", "timm_pool": "map", "timm_proj": "none", "image_size": 160}
OPEN_CLIP: dict[str, tuple[dict[str, Any], Any]] = {
    "open-clip": (
        {"embed_dim": 24, "vision_cfg": _OPEN_IMAGE, "text_cfg": _OPEN_TEXT}, CLIP_STATISTICS,
    ),
    "open-clip-quick": (
        {
            "embed_dim": 24, "quick_gelu": True, "vision_cfg": _OPEN_IMAGE,
            "text_cfg": {**_OPEN_TEXT, "pool_type": "eos", "eos_id": 2},
        },
        CLIP_STATISTICS,
    ),
    "open-clip-siglip": (
        {
            "embed_dim": 96, "custom_text": True, "init_logit_bias": -10, "vision_cfg": _TIMM,
            "text_cfg": {
                **_OPEN_TEXT, "no_causal_mask": True, "proj_bias": True, "pool_type": "last",
                "norm_kwargs": {"eps": 1e-6}, "act_kwargs": {"approximate": "tanh"},
            },
        },
        HALF,
    ),
    "open-clip-pe": (
        {
            "embed_dim": 512, "custom_text": True, "text_cfg": _OPEN_TEXT,
            "vision_cfg": {
                "timm_model_name": "vit_pe_core_tiny_patch16_384", "timm_pool": "map",
                "timm_proj": None, "image_size": 384,
            },
        },
        HALF,
    ),
    "open-clip-clipa": (
        {
            "embed_dim": 24,
            "vision_cfg": {
                **_OPEN_IMAGE, "no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True,
            },
            "text_cfg": {**_OPEN_TEXT, "no_causal_mask": True, "pool_type": "last"},
        },
        CLIP_STATISTICS,
    ),
    "open-clip-mobileclip2": (  # as L/14
        {
            "embed_dim": 64, "custom_text": True,
            "text_cfg": {**_OPEN_TEXT, "no_causal_mask": True},
            "vision_cfg": {
                "timm_model_name": "vit_xsmall_patch16_clip_224", "timm_model_pretrained": False,
                "timm_pool": "token", "timm_proj": None, "timm_drop": 0.0, "timm_drop_path": 0.1,
                "image_size": 224,
            },
        },
        CLIP_STATISTICS,
    ),
    "open-clip-unmasked": (
        {
            "embed_dim": 24, "custom_text": True, "vision_cfg": _OPEN_IMAGE,
            "text_cfg": {**_OPEN_TEXT, "no_causal_mask": True},
        },
        CLIP_STATISTICS,
    ),
}  # fmt: skip
FULL_OPEN_CLIP = {
    "open-clip-siglip-b16": (
        {
            **OPEN_CLIP["open-clip-siglip"][0], "embed_dim": 768,
            "vision_cfg": {
                "image_size": 224, "timm_model_name": "vit_base_patch16_siglip_224",
                "timm_pool": "map", "timm_proj": "none",
            },
        },
        HALF,
    ),
}  # fmt: skip
_OF_OPEN_CLIP = {**OPEN_CLIP, **FULL_OPEN_CLIP}


def fill(model: torch.nn.Module, seed: int) -> None:
    """Random weights that hide nothing; the norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith(("logit_scale", "logit_bias")):
            value = torch.full_like(weight, 3.2 if "scale" in name else -7.5)
        elif name.endswith("mask_token"):
            value = torch.zeros_like(weight)  # of training alone
        elif name == "temperature":
            value = torch.full_like(weight, 0.04)
        elif weight.ndim == 1 and name.endswith("weight"):
            value = 1 + 0.2 * noise
        elif weight.ndim == 1 or "embedding" in name or "pos_embed" in name or "probe" in name:
            value = 0.3 * noise
        else:
            value = 1.5 * noise / weight[0].numel() ** 0.5
        weight.data.copy_(value)


def texts_of(length: int, vocabulary: int, end: int | None) -> np.ndarray:
    """Ids whose ends tell the rules of pooling apart: one end, two, at the end, at once."""
    ids = np.random.default_rng(1).integers(3, vocabulary - 2, (5, length))
    if end is not None:
        ids[0, 5] = ids[1, 4] = ids[1, 8] = ids[2, -1] = ids[3, 1] = ids[4, 2] = end
        ids[3, 2:] = 0 if end != 2 else 1
    return ids.astype("int32")


def end_of(config: dict[str, Any]) -> int | None:
    """The id that a text tower pools, the largest for the old value of transformers."""
    if "text_cfg" in config:
        text = config["text_cfg"]
        ends = {"argmax": text["vocab_size"] - 1, "eos": text.get("eos_id"), "last": None}
        return ends[text.get("pool_type", "argmax")]
    return config.get("text_config", {}).get("eos_token_id")


def answer(
    folder: pathlib.Path,
    model: torch.nn.Module,
    run: Callable[..., dict[str, torch.Tensor]],
    save: Callable[[pathlib.Path], Any],
    size: int,
    statistics: Any,
    ids: np.ndarray,
) -> None:
    """Writes checkpoint, inputs and outputs, then the gradients of the loss of the first pairs."""
    folder.mkdir(parents=True, exist_ok=True)
    save(folder)
    count = 3 if size < 224 else 2
    images = np.random.default_rng(0).integers(0, 256, (count, size, size, 3)).astype("float32")
    ids = ids if size < 224 else ids[:2]
    mean, std = (np.asarray(values, "float32") for values in statistics)
    pixels = torch.tensor((images / 255 - mean) / std).permute(0, 3, 1, 2).contiguous()
    inputs = torch.tensor(ids.astype("int64"))
    with torch.inference_mode():
        found = run(pixels, inputs)
    model.double()  # single precision has three digits of some gradients
    loss = run(pixels.double(), inputs[:count], True)["loss"]
    loss.backward()
    np.savez(
        folder / "answers.npz", images=images, ids=ids, loss=loss.detach().numpy(),
        **{name: value.float().numpy() for name, value in found.items()},
    )  # fmt: skip
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.zeros_like(weight) if weight.grad is None else weight.grad)
    model.float()
    gradients = folder.with_name(f"{folder.name}-gradients")
    gradients.mkdir(exist_ok=True)
    save(gradients)


def runner(name: str, model: Any) -> Callable[..., dict[str, torch.Tensor]]:
    """A function from pixels and ids to features of unit length and logits, or to the loss."""

    def transformers_run(pixels: Any, ids: Any, with_loss: bool = False) -> dict[str, torch.Tensor]:
        kind = {**TRANSFORMERS, **FULL_TRANSFORMERS}[name][0]
        more: dict[str, Any] = {"return_loss": True} if with_loss and kind != "Aimv2" else {}
        if kind in ("Aimv2", "Tipsv2"):  # as of their tokenizers
            more["attention_mask"] = (ids != 0).long()
        found = model(input_ids=ids, pixel_values=pixels, **more)
        image, text = found.image_embeds, found.text_embeds
        if with_loss and kind == "Aimv2":
            return {"loss": open_clip.ClipLoss()(image, text, model.logit_scale.exp())}
        outputs = {"image": image, "text": text, "logits": found.logits_per_image}
        return {"loss": found.loss} if with_loss else outputs

    def open_clip_run(images: Any, ids: Any, with_loss: bool = False) -> dict[str, torch.Tensor]:
        image, text = model.encode_image(images, True), model.encode_text(ids, True)
        scale, bias = model.logit_scale.exp(), getattr(model, "logit_bias", None)
        if with_loss and bias is None:
            return {"loss": open_clip.ClipLoss()(image, text, scale)}
        if with_loss:
            return {"loss": open_clip.loss.SigLipLoss()(image, text, scale, bias)}
        logits = scale * image @ text.T
        return {"image": image, "text": text, "logits": logits if bias is None else logits + bias}

    return open_clip_run if name in _OF_OPEN_CLIP else transformers_run


def of_transformers(name: str, folder: pathlib.Path, shards: str = "5GB") -> None:
    kind, fields, statistics = {**TRANSFORMERS, **FULL_TRANSFORMERS}[name]
    config = getattr(transformers, f"{kind}Config")(**fields)
    for part in (config, config.text_config, config.vision_config):
        part._attn_implementation = "eager"
    with no_init_weights() if name in FULL_TRANSFORMERS else contextlib.nullcontext():
        model = getattr(transformers, f"{kind}Model")(config).eval()
    fill(model, seed=len(name))
    image = config.vision_config

    def save(path: pathlib.Path) -> None:
        model.save_pretrained(path, max_shard_size=shards)
        (path / "preprocessor_config.json").write_text(json.dumps({
            "image_processor_type": "ViTImageProcessor", "size": image.image_size, "resample": 3,
            "image_mean": statistics[0], "image_std": statistics[1],
        }))  # fmt: skip

    text = config.text_config
    end = end_of(fields)
    if kind == "CLIP" and end == 2:
        end = text.vocab_size - 1
    if kind == "Siglip":
        end = None
    ids = texts_of(text.max_position_embeddings, text.vocab_size, end)
    if kind == "Tipsv2":
        ids[0, 4:] = ids[1, 1:] = ids[3, 11:] = 0  # padding
    answer(folder, model, runner(name, model), save, image.image_size, statistics, ids)


def of_open_clip(name: str, folder: pathlib.Path) -> None:
    config, statistics = _OF_OPEN_CLIP[name]
    config = json.loads(json.dumps(config))
    fields = {key: value for key, value in config.items() if key != "custom_text"}
    kind = open_clip.CustomTextCLIP if config.get("custom_text") else open_clip.CLIP
    model = kind(**fields).eval()
    fill(model, seed=len(name))
    pixels = {
        "mean": statistics[0], "std": statistics[1], "interpolation": "bicubic",
        "resize_mode": "squash",
    }  # fmt: skip

    def save(path: pathlib.Path) -> None:
        state = {key: value.contiguous() for key, value in model.state_dict().items()}
        save_file(state, path / "open_clip_model.safetensors")
        (path / "open_clip_config.json").write_text(
            json.dumps({"model_cfg": config, "preprocess_cfg": pixels})
        )

    text = config["text_cfg"]
    ids = texts_of(text["context_length"], text["vocab_size"], end_of(config))
    size = config["vision_cfg"]["image_size"]
    answer(folder, model, runner(name, model), save, size, statistics, ids)


HARD_TEXTS = (
    "", "   ", "r\xe9sum\xe9", "re\u0301sume\u0301", "it's 2026, 100%", "'tis the o'clock's",
    "state-of-the-art!!!", "....", "sea_waves", "stra\xdfe STRASSE", "\u0130stanbul",
    "\u65e5\u672c\u8a9e\u306e\u732b", "\u0643\u0644\u0628", "\U0001f600 smile",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "x\xb2 \xbd \u2167", "zero\u200bwidth", "a\xa0b",
    "A\n'll 11p223RF\u2606ho!!to?'d'd''d of a cat to-$''d.", "don\u2019t", "\uff21\uff22\uff23",
    "\ufb01sh",
    "&lt;b&gt; fish &amp;amp; chips", "\u039f\u0394\u039f\u03a3", "photo " * 300,
)  # fmt: skip


def of_texts(root: pathlib.Path) -> None:
    """Ids of the lines of our documents, and of texts that are hard to split.

    CLIP's by open_clip, BERT's for CLIPA by open_clip with a vocabulary of the lines, and those of
    SentencePiece models of the lines.
    """
    import sentencepiece
    import tokenizers

    pages = sorted(pathlib.Path("docs").glob("*.md"))
    lines = sorted({line for page in pages for line in page.read_text().splitlines()})
    folder = root / "texts"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "lines.txt").write_text("\n".join(lines))
    bert = tokenizers.BertWordPieceTokenizer(lowercase=True)
    bert.train_from_iterator(lines, vocab_size=2000, show_progress=False)
    (folder / "bert").mkdir(exist_ok=True)
    bert.save_model(str(folder / "bert"))
    (folder / "bert" / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    )
    lines += HARD_TEXTS
    names = {
        "clip": open_clip.tokenizer.SimpleTokenizer()(lines).tolist(),
        "bert": open_clip.tokenizer.HFTokenizer(
            str(folder / "bert"), context_length=32, strip_sep_token=True
        )(lines).tolist(),
    }
    vocabulary = pathlib.Path(open_clip.__file__).with_name("bpe_simple_vocab_16e6.txt.gz")
    (folder / vocabulary.name).write_bytes(vocabulary.read_bytes())
    for kind, end in (("unigram", "</s>"), ("bpe", "<eos>"), ("tips", None)):
        sentencepiece.SentencePieceTrainer.train(
            input=str(folder / "lines.txt"), model_prefix=str(folder / kind), vocab_size=2000,
            model_type="unigram" if kind == "unigram" else "bpe", pad_id=0, eos_id=1 if end else -1,
            unk_id=2 if end else 1, bos_id=-1, eos_piece=end or "</s>",
            byte_fallback=kind != "unigram", minloglevel=2, num_threads=1,
        )  # fmt: skip
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{kind}.model"))
        names[kind] = model.encode([line if kind == "unigram" else line.lower() for line in lines])
    (folder / "ids.json").write_text(json.dumps({"lines": lines, **names}))


def load(name: str, folder: pathlib.Path) -> torch.nn.Module:
    """The model of a checkpoint, loaded strictly by its project."""
    if name in _OF_OPEN_CLIP:
        config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
        kind = open_clip.CustomTextCLIP if config.pop("custom_text", False) else open_clip.CLIP
        model = kind(**config)
        model.load_state_dict(load_file(folder / "open_clip_model.safetensors"), strict=True)
    else:
        kind = {**TRANSFORMERS, **FULL_TRANSFORMERS}[name][0]
        model, info = getattr(transformers, f"{kind}Model").from_pretrained(
            folder, output_loading_info=True
        )
        assert not any(info[key] for key in ("missing_keys", "unexpected_keys")), info
    return model.eval()


def read_back(name: str, folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Arrays of a checkpoint that ours wrote."""
    return {key: value.numpy() for key, value in load(name, folder).state_dict().items()}


def main(folder: str, back: str = "", full: str = "") -> None:
    root = pathlib.Path(folder)
    names = [*TRANSFORMERS, *OPEN_CLIP, *([*FULL_TRANSFORMERS, *FULL_OPEN_CLIP] if full else ())]
    for name in names:
        if back and not (root / f"{name}-ours").exists():
            continue
        if back:
            theirs, ours = read_back(name, root / name), read_back(name, root / f"{name}-ours")
            assert theirs.keys() == ours.keys(), name
            worst = max(float(np.abs(theirs[key] - ours[key]).max()) for key in theirs)
            print(f"{name}: written back, largest difference of a weight {worst:.1e}", flush=True)
        elif name in _OF_OPEN_CLIP:
            of_open_clip(name, root / name)
        else:
            of_transformers(name, root / name, "60KB" if name == "clip" else "5GB")
    if not back:
        of_texts(root)
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"open_clip {open_clip.__version__}")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
