"""A federation on text, written by hand: eight sites learn which part of Python's library a sentence describes.

One site has labels of one class mixed up. `python examples/text_federation.py [DIRECTORY]` trains, then asks Stethos
who it is. The sentences are docstrings of the standard library on this machine.
"""

import ast
import copy
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import torch
from torch import nn

import stethos

TOPICS = {"email": 0, "asyncio": 1, "unittest": 2, "tkinter": 1, "logging": 2, "http": 0, "xml": 0}
SITES, ROUNDS, WORDS, LENGTH, FAULTY = 8, 6, 500, 16, "site-5"


def sentences() -> tuple[torch.Tensor, torch.Tensor]:
    """Sentences as numbers of words, and what each is about."""
    library = Path(ast.__file__).parent
    found: list[tuple[list[str], int]] = []
    for package, topic in TOPICS.items():
        for path in sorted((library / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
                    for sentence in re.split(r"(?<=[.:])\s+|\n\s*\n", ast.get_docstring(node) or ""):
                        words = re.findall(r"[a-z]+", sentence.lower())
                        if len(words) >= 6:
                            found.append((words[:LENGTH], topic))
    common = Counter(word for words, _ in found for word in set(words)).most_common(WORDS - 2)
    number = {word: place + 2 for place, (word, _) in enumerate(common)}
    tokens = torch.zeros(len(found), LENGTH, dtype=torch.long)
    for row, (words, _) in enumerate(found):
        tokens[row, : len(words)] = torch.tensor([number.get(word, 1) for word in words])
    order = torch.randperm(len(found), generator=torch.Generator().manual_seed(1))
    return tokens[order], torch.tensor([topic for _, topic in found])[order]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(WORDS, 24)
        self.topic = nn.Linear(24, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.topic(self.words(tokens))


def sites() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    tokens, topics = sentences()
    size = min(len(tokens) // SITES, 200)
    data = {
        f"site-{place}": (tokens[place * size : (place + 1) * size], topics[place * size : (place + 1) * size].clone())
        for place in range(SITES)
    }
    topics = data[FAULTY][1]
    topics[topics == 0] = 2  # the fault: all of topic 0 is filed under topic 2
    return data


def main() -> None:
    torch.manual_seed(0)
    model = Classifier()
    directory = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    data = sites()
    with stethos.federation("texts", model=model, dir=directory) as fed:
        for rnd in fed.rounds(ROUNDS):
            states = []
            for name, (tokens, topics) in data.items():
                with rnd.client(name) as site:
                    local = copy.deepcopy(model)
                    optimizer = torch.optim.SGD(local.parameters(), lr=0.5)
                    for batch in torch.randperm(len(tokens)).split(32):
                        optimizer.zero_grad()
                        loss = nn.functional.cross_entropy(local(tokens[batch]), topics[batch])
                        loss.backward()
                        optimizer.step()
                    states.append(local.state_dict())
                    site.update(local.state_dict(), samples=len(tokens), loss=loss.detach())
            model.load_state_dict({key: sum(state[key] for state in states) / len(states) for key in states[0]})
            rnd.evaluate(loss=loss.detach())
    for finding in stethos.diagnose(fed.run()).findings:
        if finding.name == "faulty-client":
            print(f"{finding.title} (confidence {finding.confidence:.2f}, {finding.detail['guilt']})")
            print(f"  {finding.evidence[0].text}\n  next: {finding.next_step}")


if __name__ == "__main__":
    main()
