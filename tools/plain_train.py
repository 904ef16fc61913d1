"""SimCLR in one file of plain PyTorch: the run of config=quickstart/simclr without the engine.

    python tools/plain_train.py --checkpoint plain.pt

Data, augmentation, model, loss, optimizer, schedule, loop, checkpoint and evaluation are all here.
Copy and change it if you do not want an engine: from sslengine it uses only the images.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as T
from torchvision.models.resnet import BasicBlock, conv1x1

from sslengine.data.sources.generated import class_of, draw_shape

OPTIONS = (
    ("epochs", 16, "how often each image is seen"),
    ("batch-size", 128, "images; the loss sees two views of each"),
    ("learning-rate", 2e-3, "at its peak"),
    ("warmup", 0.1, "share of the run in which the learning rate rises"),
    ("weight-decay", 1e-4, "of AdamW"),
    ("temperature", 0.1, "of the loss"),
    ("crop", 0.5, "smallest share of the image in a view"),
    ("strength", 1.0, "of the colour distortion"),
    ("width", 0.25, "of the ResNet; 1 has 64 channels in its first stage"),
    ("side", 48, "of the images, in pixels"),
    ("train-images", 5000, "to learn from"),
    ("test-images", 2000, "to measure with"),
    ("seed", 0, "of initial weights, order and augmentation"),
    ("workers", 2, "processes that augment"),
    ("threads", 1, "of the model; together with the workers, one for each core"),
    ("checkpoint", "", "a file, written after each epoch and resumed from if it exists"),
)


class Shapes(Dataset[tuple[Tensor, Tensor]]):
    """The images of a split; an item is two random views of one."""

    def __init__(self, split: str, count: int, side: int, crop: float, s: float) -> None:
        self.images = [Image.fromarray(draw_shape(split, index, side)) for index in range(count)]
        self.labels = torch.tensor([class_of(index) for index in range(count)])
        to_tensor = T.Compose([T.ToTensor(), T.Normalize([0.5] * 3, [0.25] * 3)])
        self.tensor = torch.stack([to_tensor(image) for image in self.images])
        jitter = T.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)
        crops = [T.RandomResizedCrop(side, scale=(crop, 1.0)), T.RandomHorizontalFlip()]
        colours = [T.RandomApply([jitter], p=0.8), T.RandomGrayscale(p=0.2)]
        self.augment = T.Compose([*crops, *colours, to_tensor])

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.augment(self.images[index]), self.augment(self.images[index])


def collate(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The first views of all images, then the second ones."""
    return torch.stack([view for views in zip(*pairs) for view in views])


def make_model(
    width: float = 0.25, blocks: Sequence[int] = (1, 1, 1, 1), head: Sequence[int] = (128, 128)
) -> nn.Sequential:
    """`trunk`, a ResNet of basic blocks with torchvision's names; `head`, linear layers."""
    channels = round(64 * width)
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        bn1=nn.BatchNorm2d(channels),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, stride=2, padding=1),
    )
    inputs = channels
    for stage, count in enumerate(blocks):
        outputs, stride, shortcut = channels * 2**stage, 1 if stage == 0 else 2, None
        if stage > 0:
            shortcut = nn.Sequential(conv1x1(inputs, outputs, stride), nn.BatchNorm2d(outputs))
        first = BasicBlock(inputs, outputs, stride, shortcut)
        others = (BasicBlock(outputs, outputs) for _ in range(count - 1))
        layers[f"layer{stage + 1}"] = nn.Sequential(first, *others)
        inputs = outputs
    trunk = nn.Sequential(layers | {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()})
    for module in trunk.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    mlp = nn.Sequential()
    for outputs in head:
        mlp.extend([nn.Linear(inputs, outputs), nn.ReLU(inplace=True)])
        inputs = outputs
    model = nn.Sequential(OrderedDict(trunk=trunk, head=mlp[:-1]))
    return model.to(memory_format=torch.channels_last)  # half the time of a convolution on a CPU


def simclr_loss(embeddings: Tensor, temperature: float) -> Tensor:
    """Classify the other view of the same image among all other views in the batch."""
    embeddings = F.normalize(embeddings)
    views = torch.arange(len(embeddings), device=embeddings.device)
    logits = embeddings @ embeddings.T / temperature
    logits = logits.scatter(1, views[:, None], float("-inf"))
    return F.cross_entropy(logits, views.roll(len(views) // 2))


def learning_rate(where: float, peak: float, warmup: float) -> float:
    """A linear rise, then half a cosine, as `where` goes from 0 to 1."""
    if where < warmup:
        return peak * where / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (where - warmup) / (1 - warmup)))


def train_steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Tensor],
    temperature: float,
    rate: Callable[[int], float],
    first_step: int = 0,
) -> list[Tensor]:
    """A step on each batch. Returns the losses, without waiting for them."""
    losses = []
    for step, views in enumerate(batches, first_step):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        loss = simclr_loss(model(views), temperature)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@torch.no_grad()
def knn(network: nn.Module, train: Shapes, test: Shapes, k: int = 20, sigma: float = 0.1) -> float:
    """Percentage of test images whose class their k nearest training images vote for."""
    network.eval()
    known, asked = (
        F.normalize(torch.cat([network(part) for part in shapes.tensor.split(500)]))
        for shapes in (train, test)
    )
    network.train()
    similarity, nearest = (asked @ known.T).topk(k)
    votes = torch.zeros(len(asked), 10)
    votes.scatter_add_(1, train.labels[nearest], (similarity / sigma).exp())
    return 100 * (votes.argmax(1) == test.labels).float().mean().item()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, default, meaning in OPTIONS:
        text = f"{meaning} (default: {default!r})"
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    options = parser.parse_args(arguments)

    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    augmentation = (options.side, options.crop, options.strength)
    train = Shapes("TRAIN", options.train_images, *augmentation)
    test = Shapes("TEST", options.test_images, *augmentation)
    loader = DataLoader(
        train,
        options.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    model = make_model(options.width)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=options.weight_decay)
    steps, first_epoch = len(loader) * options.epochs, 0
    print(f"kNN on pixels        {knn(nn.Flatten(), train, test):5.1f} %")
    print(f"kNN before training  {knn(model[0], train, test):5.1f} %")

    if options.checkpoint and os.path.exists(options.checkpoint):
        state = torch.load(options.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        first_epoch = state["epochs"]
    started = time.perf_counter()
    for epoch in range(first_epoch, options.epochs):
        losses = train_steps(
            model,
            optimizer,
            loader,
            options.temperature,
            lambda step: learning_rate(step / steps, options.learning_rate, options.warmup),
            first_step=epoch * len(loader),
        )
        loss, seconds = torch.stack(losses).mean(), time.perf_counter() - started
        print(f"epoch {epoch + 1:3d}  loss {loss:.3f}  {seconds:5.1f} s", flush=True)
        if options.checkpoint:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            state |= {"random": torch.get_rng_state(), "epochs": epoch + 1}
            torch.save(state, options.checkpoint + ".new")
            os.replace(options.checkpoint + ".new", options.checkpoint)
    print(f"kNN after training   {knn(model[0], train, test):5.1f} %")


if __name__ == "__main__":
    main()
