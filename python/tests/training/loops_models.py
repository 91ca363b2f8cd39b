"""Workloads: one kind of model each."""

import torch
import torch.nn.functional as F
from models import Gpt, MixtureModel, Mlp, ResNet, token_loss, tokens
from workloads import STEPS, final


def mlp():
    model = Mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(512, 256)
        loss = F.mse_loss(model(x), x.roll(1, 0))
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def gpt(dropout=0.0, recompute=None, steps=STEPS):
    model = Gpt(dropout=dropout, recompute=recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = token_loss(model, *tokens())
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def resnet():
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(STEPS):
        loss = F.cross_entropy(model(torch.randn(8, 3, 32, 32)), torch.randint(0, 10, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)


def experts():
    model = MixtureModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = token_loss(model, *tokens(8, 128))
        loss.backward()
        optimizer.step()
        yield loss
    return final(model, optimizer)
