// roundpipe/models.h
// Architectures that the library brings along, read from and written to Hugging Face directories.
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

// What a program may want to know of a model before it runs.
struct ModelInfo {
  std::string architecture;         // as "llama"
  std::string wrapper{};            // of the multimodal model whose text part this is, as "gemma3"; else empty
  std::int64_t num_carried = 0;     // tensors of the files that are no part of this model: a saved one has them, too
  std::int64_t vocabulary = 0;      // token ids are below it
  std::int64_t num_parameters = 0;  // tied ones counted once; without pairs
  std::int64_t num_trained = 0;     // those of pairs included
  std::int64_t num_adapted = 0;     // linear layers with pairs
  std::int64_t num_experts = 0;     // of a layer that has experts; 0: none has
  std::string
      adapted{};  // their names within a decoder layer and how many of each there are, as "self_attn.q_proj x30"
  std::int64_t max_sequence_length = 0;  // in tokens
  std::uint64_t weight_bytes = 0;        // of all tensors in the weight files of a saved model
  std::vector<std::string> left_out{};   // names of files in the model's folder that a saved model does not have
  int num_layers = 0;                    // of the pipeline: embedding, decoder layers, head
};

// Describes the causal language model in a Hugging Face directory (config.json, *.safetensors, index where sharded).
// Reads config.json and the headers of the weight files, no weights: the coordinator reads them at Session::start().
// Inputs: token ids [batch, sequence] int64, and optionally, for packed sequences, lengths of documents [batch,
// documents] int64: those of each sequence in order, zeros behind them; what is left of the sequence is one document
// more. Attention then stays within a document, whose positions count from 0. Ids, lengths and the arguments of
// causal_lm_loss() are looked at before a call is accepted: what is wrong throws rp::Error (kUserError) from the call.
// The last layer gives {hidden states [batch, sequence, hidden], weight of the LM head [vocabulary, hidden]}, which
// causal_lm_loss() takes: evaluate by Pipeline::evaluate(). Throws rp::Error (kBadInput) naming the file, the tensor
// and the rule that it breaks; kUsage for parts that match nothing.
[[nodiscard]] Model load(const std::filesystem::path& directory, at::ScalarType dtype = at::kBFloat16,
                         const TrainedParts& parts = {});

// The parts that a folder with an adapter of PEFT asks for: a model that is loaded with them begins from it. Throws
// rp::Error (kBadInput).
[[nodiscard]] TrainedParts read_adapter(const std::filesystem::path& folder);

// What load() would describe, in numbers. Reads and throws as load(); if the files store a tied head, it also reads
// that and the embedding, and throws (kBadInput) if their values differ.
[[nodiscard]] ModelInfo inspect(const std::filesystem::path& directory, const TrainedParts& parts = {});

// How a step of an emulated model is split, where its costs depend on it.
struct EmulatedBatch {
  double sequences = 1;                 // of a microbatch, on the average
  std::int64_t sequence_length = 2048;  // tokens
  TrainedParts parts{};                 // by default all weights are trained
};

// Describes a model by its shapes and costs, for runs on an emulated device (--device sim:NAME), which compute nothing.
// Takes the folder of a model, of which only config.json is read, or the name of a preset, as "qwen3-32b" (`rp-plan
// plan --model x` lists them). Inputs and labels are those of load(). Throws rp::Error: kBadInput for a config.json
// that load() refuses, kUsage for an unknown preset.
[[nodiscard]] Model emulated(const std::string& folder_or_preset, const EmulatedBatch& batch,
                             at::ScalarType dtype = at::kBFloat16);

// What a causal language model is trained by besides the cross entropy. causal_lm_loss_settings() gives what the model
// itself has.
struct CausalLmLossSettings {
  double logit_softcap =
      0;  // c: logits are c * tanh(logits / c); 0: as they are. A part of the model: a loss with another one is refused
  double z_loss = 0;   // times the square of the logarithm of the softmax's denominator (PaLM, arXiv 2204.02311), for
                       // each trained token
  double balance = 0;  // times the auxiliary loss that balances experts (models/layers/expert_balance.h says which)
};

// Those of the model in a Hugging Face directory, or of a preset's name: its softcap, and router_aux_loss_coef where it
// has output_router_logits. Reads config.json only. Throws as emulated().
[[nodiscard]] CausalLmLossSettings causal_lm_loss_settings(const std::string& folder_or_preset);

// The loss of a causal language model: the sum over trained tokens of the cross entropy, divided by a number given with
// the call, so that it is a mean over the whole step whatever the microbatches are. Arguments of the call:
// {labels [batch, sequence] int64, where -100 is not trained; divisor, a scalar}. Label i belongs to position i (shift
// before the call). Works in chunks of tokens: whole logits never exist.
//
// It gives several numbers (RoundResult::losses()): the cross entropy; with a z-loss that, divided likewise; and of a
// model with experts the auxiliary loss, and the load of the most and of the least loaded expert, which are not
// trained. These three are of microbatches, each of which counts by its share of the step's trained tokens.
// causal_lm_losses() names them.
[[nodiscard]] Loss causal_lm_loss(const CausalLmLossSettings& settings = {});

// The numbers of causal_lm_loss() by name.
struct CausalLmLosses {
  // How evenly a model with experts uses them.
  struct Experts {
    double auxiliary_loss = 0;  // times CausalLmLossSettings::balance
    double most_loaded =
        0;  // tokens of a layer's most loaded expert, of the mean of its experts; mean over layers. 1 is even
    double least_loaded = 0;  // likewise of the least loaded one
  };
  double cross_entropy = 0;          // a mean over the step's trained tokens, where the divisor is their number
  std::optional<double> z_loss{};    // likewise; absent without CausalLmLossSettings::z_loss
  std::optional<Experts> experts{};  // absent of a model without experts
};

// Names the numbers of a loss that was made with these settings (RoundResult::losses()).
[[nodiscard]] CausalLmLosses causal_lm_losses(const std::vector<double>& numbers, const CausalLmLossSettings& settings);

// A microbatch for Model::set_example(), of which load() sets a short one: its inputs and the arguments of
// causal_lm_loss(settings). Give the sequences of a microbatch and their tokens as in the calls to come, so that
// libraries choose the same kernels.
[[nodiscard]] CallContents causal_lm_example(std::int64_t sequences, std::int64_t tokens,
                                             const CausalLmLossSettings& settings = {});

// Writes the working weights of `pipeline`, made from load(source), as a Hugging Face directory: *.safetensors with the
// names, dtypes and layout of the source's, in as many files, with the same index; packed experts (MXFP4) as bf16, and
// config.json without quantization_config then. Tensors that are no part of the model are copied, and so are the
// source's tokenizer, templates and licences (not ModelInfo::left_out), each with its permissions less the umask.
// SHA256SUMS lists all of them. Written beside `output` and renamed at the end. Pairs of `parts`, which are those of
// load(), are merged into their weights. Waits as Pipeline::synchronize(). Throws rp::Error (kOutputFailed).
void save(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
          const TrainedParts& parts = {});

// Writes the pairs, and what is trained beside them, as an adapter of PEFT: adapter_config.json and
// adapter_model.safetensors, in fp32 from the masters. Experts have a pair each under their own names. Else as save().
// Throws rp::Error (kUsage) if `parts` has no pairs.
void save_adapter(Pipeline& pipeline, const std::filesystem::path& source, const std::filesystem::path& output,
                  const TrainedParts& parts);

}  // namespace rp::models
