"""Training programs as people who know PyTorch write them from memory; `torch` is PyTorch, or vkml.

Each returns numbers and tensors that have to be alike in both.
"""

# mypy: ignore-errors

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def classes(count: int, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, count, shape)


def with_weights(torch: Any, model: Any, seed: int = 0) -> Any:
    """A model with the same weights in both."""
    rng = np.random.default_rng(seed)
    state = {}
    for name, value in model.state_dict().items():
        drawn = rng.standard_normal(tuple(value.shape)) * 0.2
        if name.endswith("running_var"):
            drawn = np.abs(drawn) + 0.5
        is_learnt = value.dtype.is_floating_point and not name.endswith("mask")
        state[name] = torch.tensor(drawn, dtype=value.dtype) if is_learnt else value
    model.load_state_dict(state)
    return model


def convolutions(torch: Any) -> Any:
    nn, F = torch.nn, torch.nn.functional

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 8, 3, padding="same", bias=False)
            self.bn1 = nn.BatchNorm2d(8)
            self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=2)
            self.norm = nn.GroupNorm(4, 16)
            self.pool = nn.AdaptiveAvgPool2d((2, 2))
            self.fc = nn.Linear(64, 10)

        def forward(self, x):
            x = F.relu(self.bn1(self.conv1(x)), inplace=True)
            x = F.max_pool2d(x, 2)
            x = F.gelu(self.norm(self.conv2(x)))
            x = torch.flatten(self.pool(x), 1)
            return self.fc(F.dropout(x, 0.0, training=self.training))

    model = with_weights(torch, Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=6)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    found = []
    for at in range(5):
        x = torch.from_numpy(normal(4, 3, 16, 16, seed=at))
        y = torch.from_numpy(classes(10, 4, seed=at))
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y)
        loss.backward()
        length = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        found += [loss.item(), float(length), *scheduler.get_last_lr()]
    model.eval()
    with torch.no_grad():
        found.append(model(x).argmax(dim=-1))
    return found, model.state_dict()


def two_networks(torch: Any) -> Any:
    nn = torch.nn
    generator = with_weights(
        torch,
        nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.BatchNorm1d(16), nn.Linear(16, 6), nn.Tanh()),
    )
    critic = with_weights(
        torch, nn.Sequential(nn.Linear(6, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1)), 1
    )
    for_generator = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    for_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    found = []
    for at in range(4):
        real, noise = torch.tensor(normal(8, 6, seed=at)), torch.tensor(normal(8, 4, seed=100 + at))
        yes = torch.ones(8, 1)
        no = torch.zeros_like(yes)
        fake = generator(noise)
        for_critic.zero_grad()
        loss = criterion(critic(real), yes) + criterion(critic(fake.detach()), no)
        loss.backward()
        for_critic.step()
        for_generator.zero_grad()
        other = criterion(critic(fake), yes)
        other.backward()
        for_generator.step()
        found += [loss.item(), other.item()]
    between = (0.3 * real + 0.7 * fake.detach()).requires_grad_(True)
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    penalty = ((slope.norm(2, dim=1) - 1) ** 2).mean()
    for_critic.zero_grad()
    penalty.backward()
    return found, penalty, critic[0].weight.grad, critic[2].weight.grad, critic.state_dict()


def recurrent(torch: Any) -> Any:
    nn = torch.nn

    class Language(nn.Module):
        def __init__(self, words=20, size=8):
            super().__init__()
            self.embedding = nn.Embedding(words, size, padding_idx=0)
            self.rnn = nn.LSTM(size, size, num_layers=2, batch_first=True)
            self.out = nn.Linear(size, words, bias=False)
            self.out.weight = self.embedding.weight

        def forward(self, x, state=None):
            y, state = self.rnn(self.embedding(x), state)
            return self.out(y), state

    model = with_weights(torch, Language())
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-2, alpha=0.9)
    state, found = None, [name for name, _ in model.named_parameters()]
    for at in range(4):
        x = torch.as_tensor(classes(20, 3, 7, seed=at))
        if state is not None:
            state = tuple(each.detach() for each in state)
        scores, state = model(x[:, :-1], state)
        loss = nn.functional.cross_entropy(scores.reshape(-1, 20), x[:, 1:].reshape(-1), ignore_index=0)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found, state, model.state_dict()


def packed_sequences(torch: Any) -> Any:
    rnn = torch.nn.utils.rnn
    model = with_weights(torch, torch.nn.GRU(3, 4, bidirectional=True, batch_first=True))
    rows = rnn.pad_sequence(
        [torch.tensor(normal(size, 3, seed=size)) for size in (5, 3, 2)], batch_first=True
    )
    y, state = model(rnn.pack_padded_sequence(rows, [5, 3, 2], batch_first=True))
    y, lengths = rnn.pad_packed_sequence(y, batch_first=True)
    y.sum().backward()
    return y, state, lengths, [each.grad for each in model.parameters()]


def generative_transformer(torch: Any) -> Any:
    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):
        def __init__(self, size, heads, longest):
            super().__init__()
            self.heads = heads
            self.c_attn = nn.Linear(size, 3 * size)
            self.c_proj = nn.Linear(size, size)
            self.register_buffer(
                "mask", torch.tril(torch.ones(longest, longest)).view(1, 1, longest, longest)
            )

        def forward(self, x):
            B, T, C = x.size()
            q, k, v = self.c_attn(x).split(C, dim=2)
            k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
            scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            scores = scores.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
            y = F.softmax(scores, dim=-1) @ v
            assert torch.allclose(y, F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-4)
            return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))

    class Block(nn.Module):
        def __init__(self, size):
            super().__init__()
            self.ln_1 = nn.LayerNorm(size)
            self.attn = Attention(size, 4, 10)
            self.ln_2 = nn.LayerNorm(size)
            self.mlp = nn.ModuleDict(
                {
                    "up": nn.Linear(size, 4 * size),
                    "act": nn.GELU(approximate="tanh"),
                    "down": nn.Linear(4 * size, size),
                }
            )

        def forward(self, x):
            x = x + self.attn(self.ln_1(x))
            return x + self.mlp.down(self.mlp.act(self.mlp.up(self.ln_2(x))))

    class GPT(nn.Module):
        def __init__(self, words=20, size=16):
            super().__init__()
            self.transformer = nn.ModuleDict(
                {
                    "wte": nn.Embedding(words, size),
                    "wpe": nn.Embedding(10, size),
                    "h": nn.ModuleList([Block(size) for _ in range(2)]),
                    "ln_f": nn.LayerNorm(size),
                }
            )
            self.lm_head = nn.Linear(size, words, bias=False)
            self.apply(self._init)

        def _init(self, module):
            if isinstance(module, nn.Linear):
                torch.nn.init.normal_(module.weight, mean=0.0, std=0.02)
                if module.bias is not None:
                    torch.nn.init.zeros_(module.bias)

        def forward(self, idx, targets=None):
            pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device).unsqueeze(0)
            x = self.transformer.wte(idx) + self.transformer.wpe(pos)
            for block in self.transformer.h:
                x = block(x)
            logits = self.lm_head(self.transformer.ln_f(x))
            loss = None
            if targets is not None:
                loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
            return logits, loss

        @torch.no_grad()
        def generate(self, idx, count):
            for _ in range(count):
                logits, _ = self(idx if idx.size(1) <= 10 else idx[:, -10:])
                logits = logits[:, -1, :] / 0.8
                best, _ = torch.topk(logits, 5)
                logits[logits < best[:, [-1]]] = -float("Inf")
                _, following = torch.topk(F.softmax(logits, dim=-1), k=1, dim=-1)
                idx = torch.cat((idx, following), dim=1)
            return idx

    model = with_weights(torch, GPT())
    decayed = [p for n, p in model.named_parameters() if p.dim() >= 2]
    others = [p for n, p in model.named_parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=1e-3, betas=(0.9, 0.95),
    )  # fmt: skip
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))
    found = [sum(p.numel() for p in model.parameters())]
    for at in range(4):
        x = torch.tensor(classes(20, 2, 8, seed=at))
        _, loss = model(x, torch.roll(x, -1, 1))
        model.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        scheduler.step()
        found.append(loss.item())
    return found, model.generate(x[:, :4], 8), list(model.state_dict())


def averages(torch: Any) -> Any:
    nn = torch.nn
    model = with_weights(torch, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    average = copy.deepcopy(model)
    for p in average.parameters():
        p.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    other = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    for at in range(6):
        x = torch.tensor(normal(5, 4, seed=at))
        ((model(x) ** 2).mean() / 3).backward()
        if (at + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for p, e in zip(model.parameters(), average.parameters(), strict=True):
                    e.mul_(0.9).add_(p, alpha=0.1)
            for p, e in zip(model.parameters(), average.parameters(), strict=True):
                e.data.copy_(e.data * 0.5 + p.data * 0.5)
            other.update_parameters(model)
    return average.state_dict(), other.module.state_dict(), optimizer.state_dict()


def functions_and_hooks(torch: Any) -> Any:
    nn = torch.nn

    class Exp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            made = x.exp() * factor
            ctx.save_for_backward(made)
            return made

        @staticmethod
        def backward(ctx, by_result):
            (made,) = ctx.saved_tensors
            assert ctx.needs_input_grad[0]
            return by_result * made, None

    class Step(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return (x > 0).float()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, by_result):
            return torch.clamp(by_result, -1, 1)

    x = torch.tensor(normal(3, 4), requires_grad=True)
    handle = x.register_hook(lambda gradient: gradient * 2)
    y = Exp.apply(x, 3.0)
    y.retain_grad()
    (Step.apply(y - 2) * y).sum().backward()
    handle.remove()
    found = [x.grad.clone(), y.grad]
    model = with_weights(torch, nn.Linear(4, 2))
    seen = []
    handles = [
        model.register_forward_pre_hook(lambda module, given: (given[0] * 2,)),
        model.register_forward_hook(lambda module, given, made: made + 1),
        model.register_full_backward_hook(lambda module, by_given, by_made: seen.extend(by_given + by_made)),
    ]
    model(x).pow(2).sum().backward()
    for handle in handles:
        handle.remove()
    model.weight.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum()))
    model(x.detach()).sum().backward()
    return found, seen, x.grad, model.weight.grad


def freezing(torch: Any) -> Any:
    nn, schedulers = torch.nn, torch.optim.lr_scheduler
    model = with_weights(torch, nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
    for p in model[0].parameters():
        p.requires_grad = False
    optimizer = torch.optim.SGD(filter(lambda p: p.requires_grad, model.parameters()), lr=0.1)
    optimizer.add_param_group({"params": model[0].parameters(), "lr": 0.01})
    scheduler = schedulers.SequentialLR(
        optimizer,
        [schedulers.LinearLR(optimizer, 0.1, total_iters=2), schedulers.CosineAnnealingLR(optimizer, 5)],
        milestones=[2],
    )
    found = []
    for at in range(5):
        if at == 3:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        model(torch.tensor(normal(3, 4, seed=at))).square().sum().backward()
        optimizer.step()
        scheduler.step()
        found += [group["lr"] for group in optimizer.param_groups]
    return found, model.state_dict(), scheduler.state_dict()["last_epoch"]


def diffusion(torch: Any) -> Any:
    nn, F = torch.nn, torch.nn.functional

    class Denoiser(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
            self.down = nn.Conv2d(1, 8, 4, 2, 1)
            self.up = nn.ConvTranspose2d(8, 8, 4, 2, 1)
            self.out = nn.Conv2d(9, 1, 3, padding=1)

        def forward(self, x, t):
            rates = torch.exp(-torch.arange(4, dtype=torch.float32))
            angles = t[:, None].float() * rates[None]
            e = torch.cat([angles.sin(), angles.cos()], dim=-1)
            h = F.silu(self.down(x) + self.time(e)[:, :, None, None])
            h = F.interpolate(F.avg_pool2d(h, 2), scale_factor=2, mode="nearest")
            return self.out(torch.cat([self.up(h), x], 1))

    model = with_weights(torch, Denoiser())
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 50), 0)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    found = []
    for at in range(3):
        x, noise = torch.tensor(normal(3, 1, 8, 8, seed=at)), torch.tensor(normal(3, 1, 8, 8, seed=50 + at))
        t = torch.tensor(classes(50, 3, seed=at))
        c = kept[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(model(c.sqrt() * x + (1 - c).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found, model.state_dict()


def mixed_precision(torch: Any) -> Any:
    nn = torch.nn
    model = with_weights(torch, nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    found = []
    for at in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(torch.tensor(normal(3, 4, seed=at)))
            loss = nn.functional.mse_loss(y.float(), torch.zeros(3, 2))
        if at == 2:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        found += [scaler.get_scale(), y.dtype == torch.bfloat16, loss.dtype == torch.float32]
    return found


def variational(torch: Any) -> Any:
    nn, F = torch.nn, torch.nn.functional
    layers = {
        "encoder": nn.Linear(6, 8),
        "mean": nn.Linear(8, 2),
        "log": nn.Linear(8, 2),
        "decoder": nn.Linear(2, 6),
    }
    model = with_weights(torch, nn.ModuleDict(layers))
    x, noise = torch.sigmoid(torch.tensor(normal(5, 6))), torch.tensor(normal(5, 2, seed=4))
    h = F.relu(model["encoder"](x))
    mean, log = model["mean"](h), model["log"](h)
    made = torch.sigmoid(model["decoder"](mean + noise * torch.exp(0.5 * log)))
    error = F.binary_cross_entropy(made, x, reduction="sum")
    divergence = -0.5 * torch.sum(1 + log - mean.pow(2) - log.exp())
    (error + divergence).backward()
    return error, divergence, {name: p.grad for name, p in model.named_parameters()}


PROGRAMS = (
    convolutions, two_networks, recurrent, packed_sequences, generative_transformer, averages,
    functions_and_hooks, freezing, diffusion, mixed_precision, variational,
)  # fmt: skip
