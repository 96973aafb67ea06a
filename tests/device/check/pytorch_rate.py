"""Tokens per second of GPT-2 training in PyTorch, as its users would write it: compiled, bf16 under
autocast, flash attention, fused AdamW, TF32 for what stays in fp32. Prints one number.
"""

import argparse
import gc
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError:
    sys.exit("python3 has no torch")


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, hidden = x.shape
        q, k, v = (part.view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
                   for part in self.qkv(self.norm1(x)).split(hidden, dim=2))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self, flags):
        super().__init__()
        # As usual, the vocabulary is padded to a multiple that suits the hardware.
        vocabulary = (flags.vocabulary + 127) // 128 * 128
        self.tokens = nn.Embedding(vocabulary, flags.hidden)
        self.positions = nn.Embedding(flags.seq_length, flags.hidden)
        self.blocks = nn.ModuleList(Block(flags.hidden, flags.heads) for _ in range(flags.layers))
        self.norm = nn.LayerNorm(flags.hidden)
        self.head = nn.Linear(flags.hidden, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def measure(flags):
    with torch.device(flags.device):  # draws the weights there
        model = Gpt2(flags)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model) if flags.device == "cuda" else model
    ids = torch.randint(flags.vocabulary, (flags.micro_batch, flags.seq_length + 1),
                        device=flags.device)

    def step():
        for _ in range(flags.accumulation):
            with torch.autocast(flags.device, dtype=torch.bfloat16):
                loss = forward(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
            (loss / flags.accumulation).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()  # waits

    times = []
    for number in range(flags.steps + 3):
        start = time.perf_counter()
        step()
        if number >= 3:
            times.append(time.perf_counter() - start)
    tokens = flags.micro_batch * flags.accumulation * flags.seq_length
    return tokens / sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    for name in ("layers", "hidden", "heads", "vocabulary", "seq_length", "micro_batch",
                 "accumulation", "steps"):
        parser.add_argument("--" + name, type=int, required=True)
    flags = parser.parse_args()
    if flags.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch sees no GPU")
    torch.set_float32_matmul_precision("high")
    while True:
        try:
            print(measure(flags))
            return
        except torch.cuda.OutOfMemoryError:
            # The same step in smaller parts.
            if flags.micro_batch % 2 != 0:
                raise
            flags.micro_batch //= 2
            flags.accumulation *= 2
        gc.collect()
        torch.cuda.empty_cache()
        torch.compiler.reset()


if __name__ == "__main__":
    main()
