// train/batches.h
// Batches of sequences, in an order that depends on the seed and on nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "train/token_file.h"

namespace rp {

inline constexpr std::int64_t kNotTrained = -100;  // as a label

// B sequences of T tokens, row-major. Row b, position t: the model sees tokens up to t and learns to predict labels[t],
// which is the document's token t + 1, or kNotTrained.
struct TokenBatch {
  std::vector<std::int64_t> tokens;  // [B, T]
  std::vector<std::int64_t> labels;  // [B, T]
  std::int64_t num_trained = 0;      // labels that are not kNotTrained
};

// How the documents became sequences.
struct SequenceCounts {
  std::uint64_t sequences = 0;
  std::uint64_t truncated = 0;  // chat documents longer than T: their end is not used
  std::uint64_t dropped = 0;    // sequences without one trained label
};

// Cuts the documents of a file into sequences and deals them out in batches, epoch after epoch, each epoch in another
// order.
//
// One document a row, never two, so that no attention goes from one to another: shorter ones are padded (token 0, not
// trained; behind the document, where causal attention does not look), longer ones are cut. Of a chat the first T
// tokens count; plain text is cut into consecutive pieces of T tokens, the label of a piece's last token being the next
// piece's first, so that each token is trained once an epoch. Sequences without a trained label are dropped.
//
// The order of epoch e is a pure function of the seed, e and the number of sequences, the same on every machine; a
// batch may span two epochs. The file must outlive this. Used by one thread at a time.
class BatchSource {
 public:
  // Throws rp::Error (kBadInput) if no sequence has a trained label.
  BatchSource(const TokenFile& file, std::int64_t sequence_length, std::int64_t batch_size, std::uint64_t seed);

  // The next batch_size sequences. Throws rp::Error (kBadInput) if the file was changed meanwhile.
  [[nodiscard]] TokenBatch next();

  // How many sequences next() has dealt out since the start of the first epoch. A source of the same file, length and
  // seed goes on from there after seek(), also with another batch size.
  [[nodiscard]] std::uint64_t cursor() const { return cursor_; }
  void seek(std::uint64_t cursor) { cursor_ = cursor; }

  [[nodiscard]] const SequenceCounts& counts() const { return counts_; }
  [[nodiscard]] std::uint64_t epoch() const { return cursor_ / rows_.size(); }

 private:
  // Tokens begin to end of the file are a row's; the last one is its last label and not seen by the model.
  struct Row {
    std::uint64_t begin;
    std::uint64_t end;
  };
  void add_rows(std::uint64_t document);
  void fill_row(const Row& row, std::size_t place, TokenBatch& batch) const;
  // The place in rows_ of the cursor's sequence.
  [[nodiscard]] std::uint64_t row_at(std::uint64_t cursor);

  const TokenFile& file_;
  std::uint64_t length_;
  std::uint64_t batch_size_;
  std::uint64_t seed_;
  std::vector<Row> rows_;
  SequenceCounts counts_;
  std::uint64_t cursor_ = 0;
  // The order of one epoch, made when its first sequence is asked for.
  std::vector<std::uint64_t> order_;
  std::uint64_t order_epoch_ = UINT64_MAX;
};

}  // namespace rp
