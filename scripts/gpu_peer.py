#!/usr/bin/env python3
"""A Llama-8B-shaped model with random bf16 weights, for the engine; and what plain PyTorch makes of its shapes.

    gpu_peer.py model DIR [tokenizer.json]    writes DIR/config.json and DIR/model.safetensors (16 GB)
    gpu_peer.py torch                         times one token, 8 rows and a 2,048-token prefill
"""

import json
import os
import shutil
import struct
import sys
import time

import torch

LAYERS, HIDDEN, INNER, HEADS, KV, DIM, VOCAB = 32, 4096, 14336, 32, 8, 128, 128256


def shapes():
    yield "model.embed_tokens.weight", (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (HIDDEN,)
        yield at + "self_attn.q_proj.weight", (HEADS * DIM, HIDDEN)
        yield at + "self_attn.k_proj.weight", (KV * DIM, HIDDEN)
        yield at + "self_attn.v_proj.weight", (KV * DIM, HIDDEN)
        yield at + "self_attn.o_proj.weight", (HIDDEN, HEADS * DIM)
        yield at + "post_attention_layernorm.weight", (HIDDEN,)
        yield at + "mlp.gate_proj.weight", (INNER, HIDDEN)
        yield at + "mlp.up_proj.weight", (INNER, HIDDEN)
        yield at + "mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (VOCAB, HIDDEN)


def write_model(folder):
    os.makedirs(folder, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": DIM,
        "num_hidden_layers": LAYERS, "vocab_size": VOCAB, "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "eos_token_id": 0,
    }
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file)
    header, offset = {}, 0
    for name, shape in shapes():
        size = 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    torch.manual_seed(0)
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, shape in shapes():
            values = torch.randn(shape, device="cuda") * 0.02 if len(shape) == 2 else torch.ones(shape, device="cuda")
            file.write(values.to(torch.bfloat16).view(torch.uint8).cpu().numpy().data)


class Peer:
    """The plain way: torch's own matrix products and attention, everything bf16."""

    def __init__(self):
        new = lambda *shape: torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02
        self.layers = [
            (new((HEADS + 2 * KV) * DIM, HIDDEN), new(HIDDEN, HEADS * DIM), new(2 * INNER, HIDDEN), new(HIDDEN, INNER))
            for _ in range(LAYERS)
        ]
        self.embed, self.head = new(VOCAB, HIDDEN), new(VOCAB, HIDDEN)
        self.weight = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        angles = torch.outer(torch.arange(4096, device="cuda"), 500000 ** (-torch.arange(0, DIM, 2, device="cuda") / DIM))
        self.cos = torch.cat([angles.cos()] * 2, -1).to(torch.bfloat16)
        self.sin = torch.cat([angles.sin()] * 2, -1).to(torch.bfloat16)
        self.keys = [torch.zeros(1, KV, 4096, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]

    def norm(self, x):
        return torch.nn.functional.rms_norm(x, (HIDDEN,), self.weight, 1e-5)

    def __call__(self, tokens, start):
        rows = tokens.shape[0]
        x = self.embed[tokens]
        cos, sin = self.cos[start : start + rows, None], self.sin[start : start + rows, None]
        turn = lambda h: h * cos + torch.cat([-h[..., DIM // 2 :], h[..., : DIM // 2]], -1) * sin
        for (qkv, o, gate_up, down), keys, values in zip(self.layers, self.keys, self.values):
            h = (self.norm(x) @ qkv.T).view(rows, HEADS + 2 * KV, DIM)
            q, k, v = h.split([HEADS, KV, KV], 1)
            keys[0, :, start : start + rows] = turn(k).transpose(0, 1)
            values[0, :, start : start + rows] = v.transpose(0, 1)
            seen = start + rows
            causal = dict(is_causal=True) if start == 0 and rows > 1 else {}
            if start and rows > 1:
                causal = dict(attn_mask=torch.ones(rows, seen, dtype=torch.bool, device="cuda").tril(start))
            h = torch.nn.functional.scaled_dot_product_attention(
                turn(q).transpose(0, 1)[None], keys[:, :, :seen], values[:, :, :seen], enable_gqa=True, **causal
            )
            x = x + h[0].transpose(0, 1).reshape(rows, -1) @ o.T
            gate, up = (self.norm(x) @ gate_up.T).chunk(2, -1)
            x = x + (torch.nn.functional.silu(gate) * up) @ down.T
        return (self.norm(x[-1:] if rows > 16 else x) @ self.head.T).argmax(-1)


def timed(work, times):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    took = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - began) * 1e3)
    return sorted(took)[times // 2]


@torch.inference_mode()
def time_torch():
    peer = Peer()
    for rows in (1, 8):
        tokens = torch.arange(rows, device="cuda")
        print(f"torch: {rows} rows behind 100, eager: {timed(lambda: peer(tokens, 100), 20):.3f} ms", flush=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            peer(tokens, 100)
        print(f"torch: {rows} rows behind 100, graph: {timed(graph.replay, 40):.3f} ms", flush=True)
    tokens = torch.arange(2048, device="cuda")
    print(f"torch: 2048 rows, eager: {timed(lambda: peer(tokens, 0), 5):.3f} ms", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "model":
        write_model(sys.argv[2])
        for file in sys.argv[3:]:
            shutil.copy(file, sys.argv[2])
    else:
        time_torch()
