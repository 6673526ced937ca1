"""Makes random small configurations of each family, as keyword arguments of its class in transformers."""

import random

# All kinds of RoPE. Contexts are short, so that every range of wavelengths occurs.
def random_rope(choose: random.Random, kinds: tuple) -> dict:
    theta = choose.choice([1000.0, 10000.0, 500000.0])
    kind = choose.choice(kinds)
    rope = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        rope["factor"] = choose.choice([2.0, 8.0, 32.0])
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": choose.choice([2.0, 4.0]), "original_max_position_embeddings": choose.choice([16, 64])}
    if kind == "yarn":
        rope |= {"beta_fast": choose.choice([8.0, 32.0]), "beta_slow": 1.0, "original_max_position_embeddings": choose.choice([16, 64, 4096])}
        if choose.random() < 0.5:
            rope["truncate"] = False
        if choose.random() < 0.3:
            rope["attention_factor"] = 1.25
    return rope


def common(choose: random.Random) -> dict:
    """Settings that all families have. Usually the size of a head is not hidden / heads, although some classes require this to be an integer."""
    kv_heads = choose.choice([1, 1, 2, 3])
    heads = kv_heads * choose.choice([1, 2, 4])
    # Norms over a handful of elements amplify every rounding.
    return {"hidden_size": heads * choose.choice([5, 8, 16] if heads > 3 else [20, 24, 33]), "intermediate_size": choose.choice([24, 37, 96]),
            "num_hidden_layers": choose.choice([1, 2, 3]), "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": choose.choice([2, 6, 8, 16, 20]), "vocab_size": choose.choice([31, 67, 128]),
            "max_position_embeddings": choose.choice([64, 128]), "tie_word_embeddings": choose.random() < 0.5,
            "rms_norm_eps": choose.choice([1e-5, 1e-6]), "initializer_range": 0.15,
            "pad_token_id": choose.choice([None, None, 3]), "bos_token_id": 1, "eos_token_id": 2}


def llama(choose: random.Random) -> dict:
    return common(choose) | {"attention_bias": choose.random() < 0.4, "mlp_bias": choose.random() < 0.4,
                             "rope_parameters": random_rope(choose, ("default", "linear", "llama3", "yarn"))}


def window(choose: random.Random) -> int:
    """Windows are shorter or longer than the sequences."""
    return choose.choice([1, 2, 7, 20, 500])


def qwen_windows(choose: random.Random) -> dict:
    if choose.random() < 0.5:
        return {}
    return {"use_sliding_window": True, "sliding_window": window(choose), "max_window_layers": choose.choice([0, 1])}


def ropes_by_type(choose: random.Random, kinds: tuple) -> dict:
    # transformers reads `truncate` from another place.
    full = {key: value for key, value in random_rope(choose, kinds).items() if key != "truncate"}
    return {"full_attention": full, "sliding_attention": random_rope(choose, ("default",))}


def qwen2(choose: random.Random) -> dict:
    return common(choose) | qwen_windows(choose) | {"rope_parameters": random_rope(choose, ("default", "yarn"))}


def qwen3(choose: random.Random) -> dict:
    return common(choose) | qwen_windows(choose) | {"attention_bias": choose.random() < 0.3,
                                                    "rope_parameters": random_rope(choose, ("default", "yarn"))}


def mistral(choose: random.Random) -> dict:
    return common(choose) | {"sliding_window": choose.choice([None, window(choose)]), "rope_parameters": random_rope(choose, ("default", "yarn"))}


def ministral3(choose: random.Random) -> dict:
    """Contexts have only a few tokens, so that queries grow within the sequences."""
    rope = random_rope(choose, ("yarn", "yarn", "default", "linear"))
    rope |= {"llama_4_scaling_beta": choose.choice([0.1, 0.7]), "original_max_position_embeddings": choose.choice([3, 8, 16, 64])}
    return common(choose) | {"sliding_window": choose.choice([None, window(choose)]), "rope_parameters": rope}


def gemma3_text(choose: random.Random) -> dict:
    changes = {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": choose.choice([4, 10, 256]), "sliding_window": window(choose),
               "num_hidden_layers": choose.choice([1, 3]), "attention_bias": choose.random() < 0.2,
               "final_logit_softcapping": choose.choice([None, 2.0, 30.0]),
               "rope_parameters": ropes_by_type(choose, ("default", "linear"))}
    changes["layer_types"] = [choose.choice(["full_attention", "sliding_attention"]) for _ in range(changes["num_hidden_layers"])]
    return common(choose) | changes


def gemma4_text(choose: random.Random) -> dict:
    """The last layer has full attention. Layers without keys and values of their own follow one of each kind of attention."""
    values = common(choose)
    num_shared, experts = choose.choice([0, 0, 1, 2, 3]), choose.choice([0, 0, 3, 5])
    per_layer = choose.choice([6, 8, 16] if num_shared else [0, 6, 8, 16])  # transformers cannot share keys without per-layer inputs
    kinds = ["full_attention", "sliding_attention"]
    types = choose.sample(kinds, 2) + choose.choices(kinds, k=choose.choice([0, 1]) + num_shared - 1) if num_shared else choose.choices(kinds, k=choose.choice([0, 1, 2]))
    types.append("full_attention")
    values |= {"num_hidden_layers": len(types), "layer_types": types, "num_kv_shared_layers": num_shared,
               "hidden_activation": "gelu_pytorch_tanh", "sliding_window": window(choose), "attention_bias": choose.random() < 0.2,
               "final_logit_softcapping": choose.choice([None, 2.0, 30.0]), "use_double_wide_mlp": choose.random() < 0.5,
               # Each head of queries, keys and values is normalised: over a handful of elements that amplifies every rounding.
               "head_dim": choose.choice([8, 12, 16]), "global_head_dim": choose.choice([8, 16, 22]),
               "attention_k_eq_v": choose.random() < 0.5, "num_global_key_value_heads": choose.choice([None, 1, values["num_attention_heads"]]),
               "hidden_size_per_layer_input": per_layer, "vocab_size_per_layer_input": values["vocab_size"] + choose.choice([0, 5]),
               "use_bidirectional_attention": choose.choice([None, "vision"])}
    if choose.random() < 0.7:
        full = choose.choice([{"rope_type": "proportional", "rope_theta": 1000.0, "partial_rotary_factor": choose.choice([0.25, 0.6, 1.0])},
                              random_rope(choose, ("default", "linear"))])
        values["rope_parameters"] = {"full_attention": full, "sliding_attention": random_rope(choose, ("default",))}
    if experts:
        # The normalised weight of a single expert is 1, and then the router's gradient is only rounding.
        values |= {"enable_moe_block": True, "num_experts": experts, "top_k_experts": choose.randint(2, experts),
                   "moe_intermediate_size": choose.choice([8, 11, 32])}
    return values


def smollm3(choose: random.Random) -> dict:
    changes = {"attention_bias": choose.random() < 0.3, "mlp_bias": choose.random() < 0.3, "no_rope_layer_interval": choose.choice([1, 2, 4]),
               "rope_parameters": random_rope(choose, ("default", "yarn"))}
    if choose.random() < 0.4:
        changes |= {"use_sliding_window": True, "sliding_window": window(choose)}
    return common(choose) | changes


def olmo3(choose: random.Random) -> dict:
    return common(choose) | {"num_hidden_layers": choose.choice([1, 4]), "sliding_window": window(choose), "attention_bias": choose.random() < 0.2,
                             "rope_parameters": ropes_by_type(choose, ("default", "yarn"))}


def experts_of(choose: random.Random, number_key: str) -> dict:
    experts = choose.choice([2, 5, 8])
    per_token = experts if choose.random() < 0.3 else choose.randint(1, experts)
    # The share of the auxiliary loss in the gradients is large enough to be noticed if it is missing.
    return {number_key: experts, "num_experts_per_tok": per_token, "output_router_logits": choose.random() < 0.6,
            "router_aux_loss_coef": choose.choice([0.001, 0.1, 2.0])}


def qwen3_moe(choose: random.Random) -> dict:
    changes = experts_of(choose, "num_experts")
    per_token = changes["num_experts_per_tok"]
    changes |= {"moe_intermediate_size": choose.choice([8, 11, 32]),
               # The normalised weight of a single expert is 1, and then the router's gradient is only rounding.
               "norm_topk_prob": per_token > 1 and choose.random() < 0.5, "decoder_sparse_step": choose.choice([1, 1, 2]), "attention_bias": choose.random() < 0.2,
               "mlp_only_layers": choose.choice([[], [], [0]]), "rope_parameters": random_rope(choose, ("default", "yarn"))}
    if choose.random() < 0.3:
        changes |= {"use_sliding_window": True, "sliding_window": window(choose)}
    return common(choose) | changes


def gpt_oss(choose: random.Random) -> dict:
    changes = experts_of(choose, "num_local_experts")
    changes |= {"num_hidden_layers": choose.choice([1, 3]), "sliding_window": window(choose), "attention_bias": choose.random() < 0.7,
                "rope_parameters": random_rope(choose, ("default", "yarn"))}
    changes["layer_types"] = [choose.choice(["full_attention", "sliding_attention"]) for _ in range(changes["num_hidden_layers"])]
    if choose.random() < 0.5:  # multiples of the block size, so that experts can be packed
        changes |= {"hidden_size": 32, "intermediate_size": choose.choice([32, 96])}
    return common(choose) | changes


def sigmoid_experts(choose: random.Random) -> dict:
    groups, of_group = choose.choice([(1, 2), (1, 5), (2, 3), (4, 2), (3, 4)])
    used_groups = choose.randint(1, groups)
    return {"n_routed_experts": groups * of_group, "n_group": groups, "topk_group": used_groups,
            # The normalised weight of a single expert is constant, and then the router's gradient is only rounding.
            "num_experts_per_tok": choose.randint(2, used_groups * of_group), "norm_topk_prob": choose.random() < 0.7,
            "n_shared_experts": choose.choice([1, 2]), "moe_intermediate_size": choose.choice([8, 11, 32]),
            "routed_scaling_factor": choose.choice([1.0, 2.5]), "first_k_dense_replace": choose.choice([0, 1])}


def glm4_moe(choose: random.Random) -> dict:
    rope = random_rope(choose, ("default", "default", "yarn", "linear"))
    return common(choose) | sigmoid_experts(choose) | {"attention_bias": choose.random() < 0.5, "use_qk_norm": choose.random() < 0.5,
                                                       "head_dim": choose.choice([4, 8, 12, 16]),
                                                       "rope_parameters": rope | {"partial_rotary_factor": choose.choice([0.5, 1.0])}}


def latent_attention(choose: random.Random) -> dict:
    """Sizes of heads are even or odd. The sizes of queries and values are equal, or either is larger."""
    heads = choose.choice([1, 2, 4])
    rope = random_rope(choose, ("default", "yarn", "yarn", "linear"))
    if rope["rope_type"] != "default" and choose.random() < 0.7:
        rope |= {"mscale": choose.choice([0.5, 1.0]), "mscale_all_dim": choose.choice([0.7, 1.0])}
    changes = {"hidden_size": heads * choose.choice([8, 16] if heads > 3 else [24, 33]), "num_attention_heads": heads, "num_key_value_heads": heads,
               # Norms over a handful of elements amplify every rounding.
               "q_lora_rank": choose.choice([None, 16, 21]), "kv_lora_rank": choose.choice([16, 21, 32]),
               "qk_nope_head_dim": choose.choice([3, 4, 8, 12]), "qk_rope_head_dim": choose.choice([2, 4, 8]),
               "v_head_dim": choose.choice([4, 5, 12, 16, 24]), "rope_interleave": choose.random() < 0.8,
               "attention_bias": choose.random() < 0.4, "rope_parameters": rope}
    values = common(choose) | changes
    del values["head_dim"]  # the classes set it to the size of the rotated part
    return values


def deepseek_v3(choose: random.Random) -> dict:
    return latent_attention(choose) | sigmoid_experts(choose)


def glm4_moe_lite(choose: random.Random) -> dict:
    values = latent_attention(choose) | sigmoid_experts(choose)
    del values["first_k_dense_replace"]
    types = [choose.choice(["dense", "sparse", "sparse"]) for _ in range(values["num_hidden_layers"])]
    return values | ({"mlp_layer_types": types} if choose.random() < 0.6 else {})


def qwen3_5_text(choose: random.Random) -> dict:
    # Queries, keys and results of the rule are normalised by head: with few elements they amplify every rounding.
    key_heads = choose.choice([1, 2, 3])
    changes = {"attention_bias": choose.random() < 0.2, "head_dim": choose.choice([4, 8, 12, 16]),
               "linear_num_key_heads": key_heads, "linear_num_value_heads": key_heads * choose.choice([1, 2, 3]),
               "linear_key_head_dim": choose.choice([12, 16, 20]), "linear_value_head_dim": choose.choice([12, 16, 24]),
               "linear_conv_kernel_dim": choose.choice([2, 3, 4])}
    # Models without any full attention cannot generate in transformers.
    types = ["full_attention"] + ["linear_attention"] * choose.choice([1, 1, 2])
    changes |= {"num_hidden_layers": len(types), "layer_types": choose.sample(types, len(types))}
    rope = random_rope(choose, ("default", "default", "yarn", "linear"))
    return common(choose) | changes | {"rope_parameters": rope | {"partial_rotary_factor": choose.choice([0.5, 0.5, 1.0])}}


def qwen3_5_moe_text(choose: random.Random) -> dict:
    changes = experts_of(choose, "num_experts")
    # The normalised weight of a single expert is 1, and then the router's gradient is only rounding.
    changes["num_experts_per_tok"] = max(2, changes["num_experts_per_tok"])
    return qwen3_5_text(choose) | changes | {"moe_intermediate_size": choose.choice([8, 11, 32]),
                                             "shared_expert_intermediate_size": choose.choice([8, 13, 24])}


def with_vision_like_qwen3_5(text: dict) -> dict:
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": text["hidden_size"], "patch_size": 4,
              "num_position_embeddings": 16}
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": text["tie_word_embeddings"]}


def qwen3_5(choose: random.Random) -> dict:
    return with_vision_like_qwen3_5(qwen3_5_text(choose) | {"model_type": "qwen3_5_text"})


def qwen3_5_moe(choose: random.Random) -> dict:
    return with_vision_like_qwen3_5(qwen3_5_moe_text(choose) | {"model_type": "qwen3_5_moe_text"})


def gemma3(choose: random.Random) -> dict:
    # The multimodal class does not cap logits, whatever its text configuration contains.
    text = gemma3_text(choose) | {"model_type": "gemma3_text", "final_logit_softcapping": None}
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    return {"text_config": text, "vision_config": vision, "mm_tokens_per_image": 4, "tie_word_embeddings": text["tie_word_embeddings"]}


def gemma4(choose: random.Random) -> dict:
    text = gemma4_text(choose) | {"model_type": "gemma4_text", "pad_token_id": 3}  # the multimodal class needs one
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
              "global_head_dim": 8, "patch_size": 4, "position_embedding_size": 16}
    return {"text_config": text, "vision_config": vision, "audio_config": None, "tie_word_embeddings": text["tie_word_embeddings"]}


def mistral3(choose: random.Random) -> dict:
    text = choose.choice([mistral(choose) | {"model_type": "mistral"}, ministral3(choose) | {"model_type": "ministral3"}])
    vision = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "head_dim": 8, "image_size": 28, "patch_size": 14}
    return {"text_config": text, "vision_config": vision, "tie_word_embeddings": text["tie_word_embeddings"]}


# By model_type.
FAMILIES = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3_moe": qwen3_moe, "mistral": mistral, "ministral3": ministral3, "gemma3_text": gemma3_text, "gemma4_text": gemma4_text, "smollm3": smollm3, "olmo3": olmo3,
            "gpt_oss": gpt_oss, "glm4_moe": glm4_moe, "glm4_moe_lite": glm4_moe_lite, "deepseek_v3": deepseek_v3, "qwen3_5_text": qwen3_5_text, "qwen3_5_moe_text": qwen3_5_moe_text, "gemma3": gemma3, "gemma4": gemma4, "mistral3": mistral3, "qwen3_5": qwen3_5,
            "qwen3_5_moe": qwen3_5_moe}
