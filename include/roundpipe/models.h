// roundpipe/models.h
// Model architectures that the library provides, read from and written to Hugging Face directories.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "roundpipe/loss.h"
#include "roundpipe/model.h"
#include "roundpipe/trained_parts.h"

namespace rp {
class Pipeline;
}

namespace rp::models {

// Facts about a model that a program can read before it trains the model.
struct ModelInfo {
  std::string architecture;  // such as "llama"
  std::string wrapper{};     // the multimodal model whose text part this is, such as "gemma3"; otherwise empty
  // Tensors in the weight files that are not part of this model. A saved model has them, too.
  std::int64_t num_carried = 0;
  std::int64_t vocabulary = 0;       // all token ids are below it
  std::int64_t num_parameters = 0;   // tied ones count once; without LoRA pairs
  std::int64_t num_trained = 0;      // including those of LoRA pairs
  std::int64_t num_adapted = 0;      // linear layers with LoRA pairs
  bool has_frozen = false;           // some tensors in the weight files are not trained
  std::int64_t num_quantised = 0;    // frozen parameters that the store has quantised
  std::int64_t quantised_bytes = 0;  // of these parameters in the store
  std::int64_t num_experts = 0;      // experts in a layer that has experts; 0 if no layer has any
  // The names of the adapted linear layers within a decoder layer, with their numbers in the whole
  // model, such as "self_attn.q_proj x30".
  std::string adapted{};
  std::int64_t max_sequence_length = 0;  // in tokens
  std::uint64_t weight_bytes = 0;        // size of all tensors in the weight files of a saved model
  std::vector<std::string> left_out{};   // names of files in the model's folder that a saved model does not have
  int num_layers = 0;                    // of the pipeline: embedding, decoder layers, head
};

// Describes the causal language model in a Hugging Face directory (config.json, *.safetensors, and
// an index if there are several weight files). Reads config.json and the headers of the weight
// files, but no weights: the coordinator reads these in Session::start().
//
// Inputs: token ids [batch, sequence] int64, and optionally, for packed sequences, the lengths of
// the documents [batch, documents] int64: for each sequence the lengths of its documents in order,
// followed by zeros. The positions after the last document form one more document. Attention then
// stays within a document, and positions count from 0 in each document. Ids, lengths and the
// arguments of causal_lm_loss() are checked before a call is accepted; if they are wrong, the call
// throws rp::Error (kUserError).
//
// The last layer outputs {hidden states [batch, sequence, hidden], weight of the LM head
// [vocabulary, hidden]}, which causal_lm_loss() takes. So use Pipeline::evaluate() to evaluate.
// Throws rp::Error: kBadInput for wrong files, naming the file, the tensor and the rule that it
// breaks; kUsage for `parts` that match nothing.
[[nodiscard]] Model load(const std::filesystem::path& directory, at::ScalarType dtype = at::kBFloat16,
                         const TrainedParts& parts = {});

// Returns the trained parts that a folder with a PEFT adapter specifies. A model that is loaded
// with them starts from the adapter. Throws rp::Error (kBadInput).
[[nodiscard]] TrainedParts read_adapter(const std::filesystem::path& folder);

// Returns facts about the model that load() would describe. Reads the same files and throws the
// same errors as load(). If the files store a tied head, it also reads the head and the embedding,
// and throws rp::Error (kBadInput) if their values differ.
[[nodiscard]] ModelInfo inspect(const std::filesystem::path& directory, const TrainedParts& parts = {});

// The sizes of a microbatch of an emulated model, on which its costs depend.
struct EmulatedBatch {
  double sequences = 1;                 // of a microbatch, on average
  std::int64_t sequence_length = 2048;  // in tokens
  TrainedParts parts{};                 // by default all weights are trained
};

// Describes a model by its shapes and costs, for runs on an emulated device (--device sim:NAME),
// which compute nothing. Takes the folder of a model, from which it reads only config.json, or the
// name of a preset, such as "qwen3-32b" (`rp-plan plan --model x` lists the presets). Inputs and
// labels are the same as for load(). Throws rp::Error: kBadInput for a config.json that load()
// refuses, kUsage for an unknown preset.
[[nodiscard]] Model emulated(const std::string& folder_or_preset, const EmulatedBatch& batch,
                             at::ScalarType dtype = at::kBFloat16);

// Settings of the loss of a causal language model, in addition to the cross entropy.
// causal_lm_loss_settings() returns the settings that a model specifies.
struct CausalLmLossSettings {
  // Logits are capped to c * tanh(logits / c), where c is this number; 0: they are not capped. It
  // is a property of the model: calls whose loss has another cap are refused.
  double logit_softcap = 0;
  // The factor of the z-loss: for each trained token, the square of the logarithm of the softmax's
  // denominator (PaLM, arXiv 2204.02311).
  double z_loss = 0;
  // The factor of the auxiliary loss that balances experts, which is defined in
  // models/layers/expert_balance.h.
  double balance = 0;
};

// Returns the settings of the model in a Hugging Face directory, or of a preset given by its name:
// its logit cap, and router_aux_loss_coef if the model sets output_router_logits. Reads only
// config.json. Throws the same errors as emulated().
[[nodiscard]] CausalLmLossSettings causal_lm_loss_settings(const std::string& folder_or_preset);

// Makes the loss of a causal language model: the sum of the cross entropy over trained tokens,
// divided by a number that is an argument of the call. So it is a mean over the whole step, however
// the step is cut into microbatches. Arguments of the call: {labels [batch, sequence] int64, where
// -100 means not trained; divisor, a scalar}. Label i belongs to position i, so shift the labels
// before the call. The loss is computed in chunks of tokens; the complete logits never exist.
//
// The loss returns several numbers (RoundResult::losses()): the cross entropy; with a z-loss, the
// z-loss, divided by the same number; and for a model with experts, the auxiliary loss and the
// highest and the lowest load of an expert. The two loads are not trained. The last three numbers
// are computed for each microbatch, and the weight of a microbatch is its share of the step's
// trained tokens. causal_lm_losses() returns the numbers by name.
[[nodiscard]] Loss causal_lm_loss(const CausalLmLossSettings& settings = {});

// The numbers of causal_lm_loss(), by name.
struct CausalLmLosses {
  // Describes how evenly a model uses its experts.
  struct Experts {
    double auxiliary_loss = 0;  // multiplied by CausalLmLossSettings::balance
    // The tokens of a layer's most loaded expert, as a multiple of the mean over the layer's
    // experts; averaged over the layers. 1 is even.
    double most_loaded = 0;
    // The same for the least loaded expert.
    double least_loaded = 0;
  };
  double cross_entropy = 0;          // the mean over the step's trained tokens, if the divisor is their number
  std::optional<double> z_loss{};    // divided by the same number; absent without CausalLmLossSettings::z_loss
  std::optional<Experts> experts{};  // absent for a model without experts
};

// Returns, by name, the numbers (RoundResult::losses()) of a loss that was made with these
// settings.
[[nodiscard]] CausalLmLosses causal_lm_losses(const std::vector<double>& numbers, const CausalLmLossSettings& settings);

// Returns a microbatch for Model::set_example(): inputs, and arguments of causal_lm_loss(settings).
// load() sets a short example of this kind. Pass the numbers of sequences and tokens that the
// microbatches of future calls have, so that libraries choose the same kernels.
[[nodiscard]] CallContents causal_lm_example(std::int64_t sequences, std::int64_t tokens,
                                             const CausalLmLossSettings& settings = {});

// Writes the working weights of `pipeline`, whose model is load(source), as a Hugging Face
// directory: *.safetensors with the names, dtypes and layout of the source's weight files, in the
// same number of files, with the same index. Parameters for which the files of a 16-bit model have
// fp32 are written from the masters, and tensors that `parts` neither trains nor adapts keep their
// bytes. Quantised weights are written as bf16;
// config.json then has no quantization_config. Copies the tensors that are not part of the model,
// and the source's tokenizer, templates and licences (but not ModelInfo::left_out), each file with
// its permissions less the umask. SHA256SUMS lists all files. `parts` must be the parts that
// load() was called with; pairs are merged into their weights. Everything is written to a
// directory next to `output`, which is renamed at the end. Waits as Pipeline::synchronize() does.
// Throws rp::Error: kBadInput for the source, kOutputFailed for the output.
void save(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
          const TrainedParts& parts = {});

// Writes the pairs, and the weights that are trained in addition to them, as a PEFT adapter:
// adapter_config.json and adapter_model.safetensors, in fp32 from the masters. Each expert has its
// own pair under its own name. In all other respects like save(). Throws also rp::Error (kUsage) if
// `parts` has no pairs.
void save_adapter(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
                  const TrainedParts& parts);

}  // namespace rp::models
