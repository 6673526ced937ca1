"""Writes token files. The format: docs/formats/tokens.md."""

import struct
import zlib
from array import array
from dataclasses import dataclass, field
from pathlib import Path

KINDS = {"text": 0, "chat": 1}  # chat: any examples, including prompts with completions
NO_EOS = 2**32 - 1


@dataclass
class TokenFileWriter:
    """Collects documents (about 5 bytes a token) and writes them."""

    vocabulary: int
    eos_token: int | None
    kind: str
    tokenizer: int = 0  # its identity (tokenizer_folder.tokenizer_identity); 0 if unknown
    document_ends: array = field(default_factory=lambda: array("Q", [0]))
    tokens: array = field(default_factory=lambda: array("I"))
    mask: bytearray = field(default_factory=bytearray)
    longest: int = 0

    def add(self, tokens: list[int], mask: list[int]) -> None:
        """Adds a document. An empty one is ignored."""
        assert len(tokens) == len(mask)
        if not tokens:
            return
        self.tokens.extend(tokens)
        self.mask.extend(mask)
        self.document_ends.append(len(self.tokens))
        self.longest = max(self.longest, len(tokens))

    @property
    def num_documents(self) -> int:
        return len(self.document_ends) - 1

    @property
    def num_trained(self) -> int:
        return self.mask.count(1)

    def document(self, index: int) -> tuple[array, bytearray]:
        """Returns the tokens of a document and their mask."""
        begin, end = self.document_ends[index:index + 2]
        return self.tokens[begin:end], self.mask[begin:end]

    def lengths(self) -> list[int]:
        """Returns the lengths of all documents in tokens, the shortest first."""
        return sorted(end - begin for begin, end in zip(self.document_ends, self.document_ends[1:]))

    def documents_without_labels(self) -> list[int]:
        """Returns the documents that have nothing to train. The first token is not a label, because
        there is nothing before it."""
        return [index for index, (begin, end) in enumerate(zip(self.document_ends, self.document_ends[1:]))
                if self.mask.find(1, begin + 1, end) < 0]

    def write(self, path: Path) -> None:
        assert self.tokens.itemsize == 4 and self.document_ends.itemsize == 8
        checksum = 0
        for part in (self.document_ends, self.tokens, self.mask):
            checksum = zlib.crc32(part, checksum)
        eos = NO_EOS if self.eos_token is None else self.eos_token
        header = struct.pack(
            "<8sIIQQQQIIIIQQ", b"RPTOKENS", 1, 80, self.vocabulary, self.num_documents, len(self.tokens),
            self.num_trained, max(self.tokens), eos, KINDS[self.kind], checksum, self.longest, self.tokenizer)
        with open(path, "wb") as file:
            file.write(header)
            self.document_ends.tofile(file)
            self.tokens.tofile(file)
            file.write(self.mask)
