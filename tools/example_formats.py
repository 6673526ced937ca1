"""Recognises the format of a row of data by its keys, and converts it to an example: a text, a
chat, or a prompt with its completion.

The formats have the names and keys that other training tools use; docs/tools.md lists them."""

import difflib
from dataclasses import dataclass

from tool import BAD_INPUT, ToolError

ROLES = ("system", "user", "assistant", "tool")
# The names of roles in data of ShareGPT's format.
ROLE_NAMES = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "function": "tool",
              "function_response": "tool", "observation": "tool"} | {role: role for role in ROLES}

# From https://github.com/tatsu-lab/stanford_alpaca, with a line break after "Response:" as in its
# published data.
ALPACA_WITH_INPUT = "Below is an instruction that describes a task, paired with an input that provides further context."
ALPACA_ALONE = "Below is an instruction that describes a task."
ALPACA_REQUEST = "Write a response that appropriately completes the request."


@dataclass(frozen=True)
class Text:
    """A document. All of it is trained."""
    text: str


@dataclass(frozen=True)
class Completion:
    """A prompt and the text that the model is to write after it, both unchanged and without a chat template."""
    prompt: str
    completion: str


@dataclass(frozen=True)
class Chat:
    """Messages for the chat template. `trained`: indices of the assistant's messages that are trained."""
    messages: list[dict]
    trained: list[int]


@dataclass(frozen=True)
class Instruction:
    """An instruction in Alpaca's format. Becomes a chat if the tokenizer has a chat template,
    otherwise Alpaca's prompt."""
    instruction: str
    input: str
    output: str
    system: str
    history: list[tuple[str, str]]

    def chat(self) -> Chat:
        asked = self.instruction + ("\n\n" + self.input if self.input else "")
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for question, answer in [*self.history, (asked, self.output)]:
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return Chat(messages, _assistants(messages))

    def completion(self, place: str) -> Completion:
        if self.history:
            raise ToolError(BAD_INPUT, f"{place}: has a history, which only a chat template can render; the tokenizer has none")
        task = self.system or f"{ALPACA_WITH_INPUT if self.input else ALPACA_ALONE} {ALPACA_REQUEST}"
        context = f"### Input:\n{self.input}\n\n" if self.input else ""
        return Completion(f"{task}\n\n### Instruction:\n{self.instruction}\n\n{context}### Response:\n", self.output)


Example = Text | Completion | Chat | Instruction


@dataclass(frozen=True)
class Format:
    """A format of rows: its required and optional keys."""
    required: tuple[str, ...]
    optional: tuple[str, ...]
    looks: str


FORMATS = {
    "text": Format(("text",), (), '{"text": "..."}'),
    "messages": Format(("messages",), (), '{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", ...}]}'),
    "sharegpt": Format(("conversations",), ("system",), '{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", ...}]}'),
    "alpaca": Format(("instruction", "output"), ("input", "system", "history"), '{"instruction": "...", "input": "...", "output": "..."}'),
    "prompt-completion": Format(("prompt", "completion"), (), '{"prompt": "...", "completion": "..."}'),
}
# Other names of keys, used only to find the nearest format for a message. They are not accepted as
# keys, because a row may contain several of them.
SYNONYMS = {
    "text": ("content", "document", "body"),
    "messages": ("chat",),
    "conversations": ("conversation", "dialogue", "dialog"),
    "instruction": ("task",),
    "output": ("response", "answer"),
    "prompt": ("question", "query"),
    "completion": ("response", "answer"),
}


def make_example(place: str, row: object, wanted: str | None) -> tuple[Example, list[str]]:
    """Returns the row's example in the format `wanted` (None: the format of its keys), and the keys
    that the format does not use."""
    if not isinstance(row, dict):
        raise ToolError(BAD_INPUT, f"{place}: must be an object, such as {FORMATS['text'].looks} or {FORMATS['messages'].looks}")
    name = _format_of(place, row, wanted)
    unused = [key for key in row if key not in FORMATS[name].required + FORMATS[name].optional]
    return _MAKERS[name](place, row), unused


def _format_of(place: str, row: dict, wanted: str | None) -> str:
    names = [name for name, entry in FORMATS.items() if all(key in row for key in entry.required)]
    if wanted and wanted in names:
        names = [wanted]
    elif wanted:
        raise ToolError(BAD_INPUT, f"{place}: is not in the format {wanted}, {FORMATS[wanted].looks}: {_lacks(row, wanted)}")
    if "chosen" in row or "rejected" in row or ("prompt-completion" in names and isinstance(row.get("label"), bool)):
        raise ToolError(BAD_INPUT, f"{place}: is data of preferences (its keys: {_names(row)}), which `train` has no loss for")
    if len(names) == 1:
        return names[0]
    if names:
        raise ToolError(BAD_INPUT, f"{place}: its keys ({_names(row)}) fit the formats {' and '.join(names)}; say which with --format")
    nearest = max(FORMATS, key=lambda name: _likeness(row, name))
    if _likeness(row, nearest) == 0:
        known = ", ".join(f"{name} {entry.looks}" for name, entry in FORMATS.items())
        raise ToolError(BAD_INPUT, f"{place}: its keys ({_names(row)}) are those of no known format; known are {known}")
    raise ToolError(BAD_INPUT, f"{place}: its keys ({_names(row)}) are those of no known format; the nearest is {nearest}, "
                               f"{FORMATS[nearest].looks}: {_lacks(row, nearest)}")


def _names(row: dict) -> str:
    return ", ".join(repr(key[:40]) for key in list(row)[:8]) + (", ..." if len(row) > 8 else "") if row else "it has none"


def _likeness(row: dict, name: str) -> float:
    """Returns how similar the row's keys are to the required keys of the format: 0 to 1."""
    def best(wanted: str) -> float:
        ratios = [1.0 if key == wanted else 0.9 if key.lower() in SYNONYMS[wanted]
                  else difflib.SequenceMatcher(None, key[:40].lower(), wanted).ratio() for key in row]
        return max((ratio for ratio in ratios if ratio > 0.8), default=0.0)

    required = FORMATS[name].required
    return sum(map(best, required)) / len(required)


def _lacks(row: dict, name: str) -> str:
    return "it lacks " + " and ".join(f'"{key}"' for key in FORMATS[name].required if key not in row)


def _string(place: str, name: str, value) -> str:
    if not isinstance(value, str):
        raise ToolError(BAD_INPUT, f"{place}: {name} is not a string")
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise ToolError(BAD_INPUT, f"{place}: {name} has half of a surrogate pair, which is no character")
    return value


def _optional_string(place: str, row: dict, name: str) -> str:
    return "" if row.get(name) is None else _string(place, name, row[name])


def _assistants(messages: list[dict]) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


def _message(place: str, number: int, entry) -> tuple[dict, bool]:
    """Returns a message, with "role" and "content" or with "from" and "value", and whether it may be trained."""
    if not isinstance(entry, dict):
        raise ToolError(BAD_INPUT, f"{place}: message {number} is not an object")
    keys = ("from", "value") if "role" not in entry and "content" not in entry and ("from" in entry or "value" in entry) else ("role", "content")
    for key in keys:
        if key not in entry:
            raise ToolError(BAD_INPUT, f"{place}: message {number} has no {key}")
    role, content = (_string(place, f"{key} of message {number}", entry[key]) for key in keys)
    if role not in ROLE_NAMES:
        raise ToolError(BAD_INPUT, f"{place}: message {number} has the role {role[:40]!r}; known are {', '.join(ROLE_NAMES)}")
    for key in ("weight", "train"):
        if entry.get(key) not in (None, 0, 1):
            raise ToolError(BAD_INPUT, f"{place}: message {number} has the {key} {str(entry[key])[:40]}; 0 and 1 are known")
        if entry.get(key) == 1 and ROLE_NAMES[role] != "assistant":
            raise ToolError(BAD_INPUT, f"{place}: message {number} of the {role} is to be trained ({key}); only the assistant's are")
    return {"role": ROLE_NAMES[role], "content": content}, 0 not in (entry.get("weight"), entry.get("train"))


def _chat(place: str, name: str, entries, untrained: int = 0) -> Chat:
    """Returns the chat of a list of messages. The first `untrained` messages are context."""
    if not isinstance(entries, list) or not entries:
        raise ToolError(BAD_INPUT, f"{place}: {name} is not a list with entries")
    read = [_message(place, number, entry) for number, entry in enumerate(entries, 1)]
    messages = [message for message, _ in read]
    if not any(index >= untrained for index in _assistants(messages)):
        raise ToolError(BAD_INPUT, f"{place}: has no message of the assistant{' in its completion' if untrained else ''}, so nothing to train")
    return Chat(messages, [index for index in _assistants(messages) if index >= untrained and read[index][1]])


def _make_sharegpt(place: str, row: dict) -> Chat:
    chat = _chat(place, "conversations", row["conversations"])
    system = _optional_string(place, row, "system")
    if not system:
        return chat
    if chat.messages[0]["role"] == "system":
        raise ToolError(BAD_INPUT, f'{place}: has "system" and a first message of the system; one of the two is enough')
    return Chat([{"role": "system", "content": system}, *chat.messages], [index + 1 for index in chat.trained])


def _make_instruction(place: str, row: dict) -> Instruction:
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(turn, list) and len(turn) == 2 for turn in history):
        raise ToolError(BAD_INPUT, f"{place}: history is not a list of pairs of question and answer")
    turns = [(_string(place, "history", question), _string(place, "history", answer)) for question, answer in history]
    return Instruction(_string(place, "instruction", row["instruction"]), _optional_string(place, row, "input"),
                       _string(place, "output", row["output"]), _optional_string(place, row, "system"), turns)


def _make_completion(place: str, row: dict) -> Completion | Chat:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, list) and isinstance(completion, list):
        return _chat(place, "prompt and completion", prompt + completion, untrained=len(prompt))
    if isinstance(prompt, list) or isinstance(completion, list):
        raise ToolError(BAD_INPUT, f"{place}: one of prompt and completion is a list of messages and the other is not")
    return Completion(_string(place, "prompt", prompt), _string(place, "completion", completion))


_MAKERS = {
    "text": lambda place, row: Text(_string(place, "text", row["text"])),
    "messages": lambda place, row: _chat(place, "messages", row["messages"]),
    "sharegpt": _make_sharegpt,
    "alpaca": _make_instruction,
    "prompt-completion": _make_completion,
}
