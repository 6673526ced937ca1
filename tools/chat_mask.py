"""Tokenizes examples and marks the tokens that are trained. The rules: docs/formats/tokens.md."""

from example_formats import Chat, Completion, Example, Instruction, Text
from tokenizer_folder import first_line
from tool import BAD_INPUT, ToolError

Tokens = tuple[list[int], list[int]]  # token ids, and for each token 1 if it is trained, else 0


class ExampleTokenizer:
    """Tokenizes examples of one kind, text or others, because the tokenizer is configured for that kind."""

    def __init__(self, tokenizer, of_text: bool):
        self._tokenizer = tokenizer
        self.num_apart = 0  # completions whose prompt ends inside a token
        self.first_apart = ""
        if of_text:
            return
        # The tokens that the tokenizer puts before each text, such as Llama's <|begin_of_text|>.
        with_special, without = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
        starts = [i for i in range(len(with_special)) if with_special[i:i + len(without)] == without]
        self._beginning = with_special[:starts[0]] if starts else []
        # The chat template writes the special tokens, and some post-processors exclude white space
        # from the offsets.
        from tokenizers import processors

        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B", special_tokens=[])

    def tokenize(self, place: str, example: Example) -> Tokens:
        if isinstance(example, Instruction):
            example = example.chat() if self._tokenizer.chat_template else example.completion(place)
        if isinstance(example, Text):
            return self._tokenize_text(example.text)
        if isinstance(example, Completion):
            return self._tokenize_completion(place, example)
        return self._tokenize_chat(place, example)

    def _tokenize_text(self, text: str) -> Tokens:
        if not text:
            return [], []
        tokens = self._with_end(self._tokenizer(text)["input_ids"])
        return tokens, [1] * len(tokens)

    def _tokenize_completion(self, place: str, example: Completion) -> Tokens:
        prompt = self._encode(example.prompt)["input_ids"]
        whole = self._encode(example.prompt + example.completion)["input_ids"]
        if whole[:len(prompt)] == prompt:
            completion = whole[len(prompt):]
        else:  # A user of the model will pass it these tokens of the prompt, so the completion is trained after them.
            completion = self._encode(example.completion)["input_ids"]
            self.num_apart += 1
            self.first_apart = self.first_apart or place
        prompt = self._beginning + prompt
        completion = self._with_end(completion)
        return prompt + completion, [0] * len(prompt) + [1] * len(completion)

    def _tokenize_chat(self, place: str, chat: Chat) -> Tokens:
        whole, spans = self._trained_spans(place, chat)
        encoded = self._encode(whole, return_offsets_mapping=True)
        mask = [0] * len(encoded["input_ids"])
        span = 0
        for index, (begin, end) in enumerate(encoded["offset_mapping"]):
            while span < len(spans) and begin >= spans[span][1]:
                span += 1
            # A token that begins in the prompt is context: the model will be given its beginning.
            if span < len(spans) and spans[span][0] <= begin < end:
                mask[index] = 1
        return encoded["input_ids"], mask

    def _encode(self, text: str, **options):
        return self._tokenizer(text, add_special_tokens=False, **options)

    def _with_end(self, tokens: list[int]) -> list[int]:
        end = self._tokenizer.eos_token_id
        return tokens if end is None or tokens[-1:] == [end] else tokens + [end]

    def _trained_spans(self, place: str, chat: Chat) -> tuple[str, list[tuple[int, int]]]:
        """Returns the rendered chat, and the ranges of its characters that the trained messages
        added.

        A message's range is the difference between its rendering and the rendering of the messages
        before it with the generation prompt: the text that the model itself will have to write.
        White space after the end-of-turn token belongs to the template."""
        if not self._tokenizer.chat_template:
            raise ToolError(BAD_INPUT, f"{place}: is a chat, but the tokenizer has no chat template, so its messages cannot be rendered; "
                                       "take the tokenizer of a chat model, or give prompts with completions")

        def render(count: int, prompt: bool) -> str:
            try:
                return self._tokenizer.apply_chat_template(chat.messages[:count], tokenize=False, add_generation_prompt=prompt)
            except Exception as error:  # a template is a program
                raise ToolError(BAD_INPUT, f"{place}: the chat template refuses it: {first_line(error)}") from error

        if 0 in chat.trained:
            raise ToolError(BAD_INPUT, f'{place}: begins with a message of the assistant, which answers nothing; remove it, or give it "weight": 0')
        whole = render(len(chat.messages), False)
        spans = []
        for index in chat.trained:
            before, after = render(index, True), render(index + 1, False)
            if not after.startswith(before) or not whole.startswith(after.rstrip()):
                raise ToolError(BAD_INPUT, f"{place}: the chat template renders message {index + 1} differently as part of a "
                                           "longer chat; give each assistant turn a line of its own")
            spans.append((len(before), len(after.rstrip())))
        return whole, spans
