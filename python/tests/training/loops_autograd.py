"""Workloads: one feature of autograd each."""

import torch
import torch.nn.functional as F
from models import Gpt, Mlp, padded_tokens, token_loss, tokens
from torch import nn
from workloads import STEPS, final

ROWS = 512


def _loop(model, loss_of, lr=1e-3):
    """Trains `model` on the loss that `loss_of(rows)` gives."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(torch.randn(ROWS, 256))
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def tied():
    """One weight in two layers, and its transpose in a third."""
    model = nn.ModuleList(nn.Linear(256, 256) for _ in range(3))
    model[1].weight = model[0].weight

    def loss_of(x):
        y = torch.tanh(model[1](F.gelu(model[0](x))))
        return F.mse_loss(model[2](y @ model[0].weight), x)

    return _loop(model, loss_of)


def in_place():
    """Operators that write their inputs, and `out=` arguments."""
    model = Mlp()
    mean = torch.zeros(ROWS, 256)
    buffer = torch.empty(ROWS, 256)

    def loss_of(x):
        h = model[0](x)
        h = h.mul_(0.5).relu_()
        h = model[4](model[2](h).add_(0.1).sigmoid_())
        y = model[6](h.tanh_())
        y[:, ::2] *= 2.0
        y.index_fill_(0, torch.arange(0, ROWS, 7), 0.25)
        with torch.no_grad():
            mean.lerp_(y, 0.1)
            torch.mul(mean, 0.5, out=buffer)
            mean.copy_(buffer)
        return F.mse_loss(y, x) + (y - mean).square_().mean()

    return _loop(model, loss_of)


def views():
    """Views of views, strided and expanded ones, and writes through them."""
    model = Mlp()

    def loss_of(x):
        h = model[0](x)
        left, right = h.view(ROWS, 2, 256).unbind(1)
        turned = left.t().contiguous().t() + right
        windows = turned.as_strided((ROWS - 1, 512), (256, 1))
        y = model[6](model[2](windows))
        result = torch.zeros(ROWS, 256)
        result[1:].copy_(y)
        result.narrow(0, 0, 1).add_(y.mean(0).expand(1, 256))
        parts = result.chunk(4, dim=1)
        return F.mse_loss(torch.cat([part.flip(1) for part in parts], 1), x.transpose(0, 1).T)

    return _loop(model, loss_of)


class Swish(torch.autograd.Function):
    """x * sigmoid(x), keeping its input alone, with a backward that works in place."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(x)
        return (share * (1 - share)).mul_(x).add_(share).mul_(gradient)


class Scaled(torch.autograd.Function):
    """Changes its input in place and hands a second result out that has no gradient."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        x.mul_(2.0)
        ctx.mark_dirty(x)
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        ctx.mask = mask
        return x, mask

    @staticmethod
    def backward(ctx, gradient, _):
        (weight,) = ctx.saved_tensors
        return gradient * 2.0, (gradient * ctx.mask).sum() * torch.ones_like(weight)


def functions():
    model = Mlp()

    def loss_of(x):
        h = Swish.apply(model[0](x))
        h, mask = Scaled.apply(model[2](h), model[0].bias)
        h = Swish.apply(model[4](h)) * mask
        return F.mse_loss(model[6](h), x)

    return _loop(model, loss_of)


def padded_accumulation(parts=3):
    """Each step adds up the gradients of batches, each padded to a length of its own."""
    model = Gpt(layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2 * STEPS):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(parts):
            loss = token_loss(model, *padded_tokens()) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        yield total


def double_backward():
    """A penalty on the gradient by the input, as some adversarial networks have."""
    model = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256), nn.Softplus())

    def loss_of(x):
        x.requires_grad_()
        y = model(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return F.mse_loss(y, x.detach()) + (slope.norm(2, dim=1) - 1).square().mean()

    return _loop(model, loss_of)


def accumulation(parts=4):
    """Each step adds up the gradients of some small batches."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=False)
        total = 0.0
        for _ in range(parts):
            loss = token_loss(model, *tokens(2, 128)) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        yield total
    return final(model, optimizer)


def autocast():
    """Mixed precision: weights in float32, most of the work in bfloat16."""
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = token_loss(model, *tokens())
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def saved_tensor_hooks():
    """Hooks that pack what is saved for the backward, and hooks on gradients."""
    model = Mlp()
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))

    def pack(tensor):
        return tensor.to(torch.float64)

    def unpack(packed):
        return packed.to(torch.float32) if packed.is_floating_point() else packed

    def loss_of(x):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return F.mse_loss(model(x), x)

    return _loop(model, loss_of)
