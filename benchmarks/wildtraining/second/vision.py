"""Bugs on the way from pictures to a loss."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from benchmarks.wildtraining.second import bug
from benchmarks.wildtraining.second.data import digits, shapes, wrong


class ShapeMasks(Dataset):
    """Pictures with a mask, mirrored at random while training."""

    def __init__(self, count: int, seed: int, mirrored: bool, with_mask: bool) -> None:
        images, _, _, masks = shapes(count, seed)
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
        self.masks = torch.from_numpy(masks > 0).float()
        self.mirrored, self.with_mask = mirrored, with_mask

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.images[index], self.masks[index]
        if self.mirrored and torch.rand(()) < 0.5:
            image = image.flip(-1)
            if self.with_mask:
                mask = mask.flip(-1)
        return image, mask


@bug(
    cause="The random mirroring turns the picture but leaves its mask as it was, so half of the masks do not fit.",
    must_say="targets do not belong to the inputs, because an augmentation changes pictures and not masks",
    symptom="the loss stays high, or learning stalls early, without a word about mismatched targets",
    source="https://blog.csdn.net/qq_40714949/article/details/127614775",
    good=0.03,
)
def mask_left_behind(bug: bool) -> float:
    train = ShapeMasks(640, seed=1, mirrored=True, with_mask=not bug)
    test = ShapeMasks(160, seed=2, mirrored=False, with_mask=True)
    loader = DataLoader(train, batch_size=32, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(25):
        model.train()
        running = 0.0
        for images, masks in loader:
            optimizer.zero_grad()
            loss = criterion(model(images)[:, 0], masks)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch}: loss {running / len(loader):.4f}")
    model.eval()
    with torch.no_grad():
        predicted = model(test.images)[:, 0] > 0
    truth = test.masks > 0.5
    return 1 - ((predicted & truth).sum() / (predicted | truth).sum()).item()


@bug(
    cause="Pictures stored as height, width, colour are brought to colour, height, width by reshape instead of "
    "permute, which mixes colours and rows.",
    must_say="the inputs are scrambled, or their layout is wrong (reshaped where axes had to be moved)",
    symptom="the loss or accuracy stays bad, or the model underfits",
    source="https://github.com/Selen-Suyue/DensePolicy2D/issues/3",
    good=0.15,
)
def colours_reshaped(bug: bool) -> float:
    def load(count: int, seed: int) -> tuple[Tensor, Tensor]:
        images, kinds, colours, _ = shapes(count, seed)
        x = torch.from_numpy(images).float() / 127.5 - 1
        x = x.reshape(len(x), 3, 16, 16) if bug else x.permute(0, 3, 1, 2).contiguous()
        return x, torch.from_numpy(kinds * 3 + colours)

    x_train, y_train = load(1200, 3)
    x_test, y_test = load(300, 4)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(48, 9),
    )  # fmt: skip
    opt = torch.optim.AdamW(net.parameters(), lr=4e-3)
    steps = 0
    for epoch in range(18):
        for x, y in DataLoader(TensorDataset(x_train, y_train), batch_size=50, shuffle=True):
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            steps += 1
        net.eval()
        with torch.no_grad():
            print(f"epoch {epoch} step {steps} loss {loss:.3f} val error {wrong(net(x_test), y_test):.3f}")
        net.train()
    with torch.no_grad():
        return wrong(net(x_test), y_test)


class BrightDigits(Dataset):
    """Digits as bytes, with a brightness that is drawn anew each time."""

    def __init__(self, images: Tensor, labels: Tensor, clip: bool) -> None:
        self.images = (images.numpy() * 255).astype(np.uint8)
        self.labels, self.clip = labels, clip
        self.rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        brighter = self.images[index].astype(np.int16) + self.rng.integers(-60, 100)
        image = (np.clip(brighter, 0, 255) if self.clip else brighter).astype(np.uint8)
        return torch.from_numpy(image).float() / 255, self.labels[index]


@bug(
    cause="Augmented pictures are cast to bytes without clipping, so bright pixels wrap around to dark ones.",
    must_say="inputs overflow or wrap around (bytes), or training inputs are distributed unlike those in validation",
    symptom="validation is far worse than training, or the loss stays high",
    source="https://github.com/vxy10/p5_VehicleDetection_Unet/issues/2",
    good=0.06,
)
def bright_turns_dark(bug: bool) -> float:
    images, labels, held, answers = digits(700)
    loader = DataLoader(BrightDigits(images, labels, clip=not bug), batch_size=28, shuffle=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(1, 41):
        for batch, target in loader:
            optimizer.zero_grad()
            loss = loss_fn(model(batch), target)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            error = wrong(model(held), answers)
        print(f"Epoch {epoch}/40 - loss: {loss.item():.4f} - val_error: {error:.4f}")
    return error


class JitteredDigits(Dataset):
    """Digits with a little noise and a shift by at most a pixel."""

    def __init__(self, images: Tensor, labels: Tensor, copies: bool) -> None:
        self.images, self.labels, self.copies = images.numpy().copy(), labels, copies
        self.rng = np.random.default_rng(1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index].copy() if self.copies else self.images[index]
        image += self.rng.normal(0, 0.12, image.shape)
        image[:] = np.roll(image, self.rng.integers(-1, 2), axis=-1)
        return torch.from_numpy(image.astype(np.float32)), self.labels[index]


@bug(
    cause="The data set augments its arrays in place, so noise and shifts of all epochs add up in the stored pictures.",
    must_say="the data change from epoch to epoch (drift, growing noise), or stored samples are modified in place",
    symptom="the loss rises again, or validation gets worse with time, without a word about the data",
    source="https://github.com/facebookresearch/pycls/pull/21",
    good=0.08,
)
def noise_that_stays(bug: bool) -> float:
    images, labels, held, answers = digits()
    loader = DataLoader(JitteredDigits(images, labels, copies=not bug), batch_size=40, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(192, 48), nn.ReLU(),
        nn.Dropout(0.2), nn.Linear(48, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    for epoch in range(25):
        model.train()
        for batch, target in loader:
            loss = F.cross_entropy(model(batch), target, label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            error = wrong(model(held), answers)
        print(epoch, round(loss.item(), 3), round(error, 3))
    return error


@bug(
    cause="Batch normalisation has momentum 0.99, copied from a framework where that keeps 99 % of the old statistics; "
    "here it keeps 1 %, so evaluation uses the statistics of the last, tiny batch.",
    must_say="running statistics of batch normalisation follow single batches, or its momentum is far too high",
    symptom="evaluation is much worse than training, or differs between train and eval mode",
    source="https://github.com/pytorch/vision/issues/8250",
    good=0.06,
)
def momentum_from_elsewhere(bug: bool) -> float:
    momentum = 0.99 if bug else 0.01
    images, labels, held, answers = digits(1302)

    def block(width: int, out: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out, momentum=momentum), nn.ReLU())

    model = nn.Sequential(
        block(1, 12), block(12, 16), nn.AvgPool2d(2), block(16, 16), nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    loader = DataLoader(TensorDataset(images, labels), batch_size=20, shuffle=True)  # 65 batches of 20 and one of 2
    for epoch in range(14):
        model.train()
        correct = 0
        for batch, target in loader:
            scores = model(batch)
            loss = F.cross_entropy(scores, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (scores.argmax(1) == target).sum().item()
        model.eval()
        with torch.no_grad():
            error = wrong(model(held), answers)
        print(f"epoch {epoch} train acc {correct / len(images):.3f} val acc {1 - error:.3f}")
    return error
