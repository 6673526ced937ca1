"""Creates a tokenizer directory of 300 tokens without a download: bytes, a few words, chat markers."""

from pathlib import Path

CHAT_TEMPLATE = """{% for message in messages %}<|start|>{{ message['role'] }}
{{ message['content'] }}<|end|>
{% endfor %}{% if add_generation_prompt %}<|start|>assistant
{% endif %}"""
# Omits the assistant's text except in the last turn, as templates of reasoning models do.
FORGETFUL_TEMPLATE = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}", "{{ message['content'] if loop.last or message['role'] != 'assistant' else '...' }}")


def make(directory: Path, template: str | None = CHAT_TEMPLATE) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Excludes white space from the offsets, so a mask made from them would be wrong.
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|start|>", "<|end|>")])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")
    wrapped.chat_template = template
    wrapped.save_pretrained(directory)
