// train/data/sequences.h
// Documents of a token file as sequences of equal length: one document each, padded, or several packed behind one
// another.
#pragma once

#include <cstdint>
#include <vector>

#include "train/data/packing.h"
#include "train/data/token_file.h"

namespace rp {

inline constexpr std::int64_t kNotTrained = -100;  // as a label

// B sequences of T tokens, row-major. Row b, position t: the model sees tokens of its document up to t and learns to
// predict labels[t], which is the document's next token, or kNotTrained.
struct TokenBatch {
  std::vector<std::int64_t> tokens;  // [B, T]
  std::vector<std::int64_t> labels;  // [B, T]
  std::vector<std::int64_t>
      documents;                 // [B, K]: lengths of the documents of each row, then zeros; empty without packing
  std::int64_t num_tokens = 0;   // positions that are no padding: what follows them in their document is known
  std::int64_t num_trained = 0;  // labels that are not kNotTrained
};

// How the documents became sequences.
struct SequenceCounts {
  std::uint64_t sequences = 0;
  std::uint64_t pieces = 0;     // documents, or parts of long texts
  std::uint64_t tokens = 0;     // positions of the sequences that are no padding
  std::uint64_t trained = 0;    // labels
  std::uint64_t truncated = 0;  // chat documents longer than a sequence: their end is not used
  std::uint64_t dropped = 0;    // pieces without one trained label
};

// Cuts documents into pieces of at most T tokens, and puts the pieces into sequences.
//
// Of a chat the first T tokens count; plain text is cut into consecutive pieces of T tokens, the label of a piece's
// last token being the next piece's first, so that each token is trained once an epoch. Pieces without a trained label
// are dropped. With packing the pieces are packed by first fit decreasing; no attention goes from one to another.
// Without it each is a sequence, with padding (token 0, not trained) behind it, where causal attention does not look.
//
// The file must outlive this. Used by one thread at a time.
class Sequences {
 public:
  // `documents`: numbers of documents of the file. Throws rp::Error (kBadInput) if none of them has a trained label.
  Sequences(const TokenFile& file, const std::vector<std::uint64_t>& documents, std::int64_t length, bool is_packed);

  [[nodiscard]] std::uint64_t size() const { return counts_.sequences; }
  [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(length_); }
  [[nodiscard]] const SequenceCounts& counts() const { return counts_; }

  // The pieces of each sequence, in the order of the file as far as packing keeps it.
  [[nodiscard]] Packs in_order() const;
  // The same in another order, and packed with others, for each seed and epoch: a pure function of those and of the
  // lengths of the pieces, the same on every machine. Without packing it depends on the number of pieces only.
  [[nodiscard]] Packs shuffled(std::uint64_t seed, std::uint64_t epoch) const;

  // Sequences `first` to `first + count` of an order as a batch; those behind the last one are empty. Throws rp::Error
  // (kBadInput) if the file was changed meanwhile.
  [[nodiscard]] TokenBatch batch(const Packs& order, std::uint64_t first, std::uint64_t count) const;
  // An empty batch of so many sequences, and sequence `number` put into its row `row`.
  [[nodiscard]] TokenBatch empty_batch(std::uint64_t count) const;
  void fill_row(const Packs& order, std::uint64_t number, std::uint64_t row, TokenBatch& batch) const;

 private:
  // Tokens begin to end of the file; the last one is a label only, where there are more than one.
  struct Piece {
    std::uint64_t begin;
    std::uint64_t end;
    [[nodiscard]] std::uint32_t num_positions() const { return static_cast<std::uint32_t>(end - begin - 1); }
  };
  void add_pieces(std::uint64_t document);
  // Packs the pieces of these numbers.
  [[nodiscard]] Packs packed(const std::vector<std::uint64_t>& pieces) const;
  // Puts a piece at a position of a row, and gives the position behind it.
  std::uint64_t fill_piece(const Piece& piece, std::uint64_t place, TokenBatch& batch) const;

  const TokenFile& file_;
  std::uint64_t length_;
  bool is_packed_;
  std::vector<Piece> pieces_;
  SequenceCounts counts_;
};

// Which documents of `num_documents` are trained on and which are held out for evaluation.
struct DocumentSplit {
  std::vector<std::uint64_t> trained;   // ascending
  std::vector<std::uint64_t> held_out;  // ascending
};

// Holds out a share of the documents, between 0 and 1: at least one if the share is above 0, and never all. A pure
// function of its arguments.
[[nodiscard]] DocumentSplit split_documents(std::uint64_t num_documents, double held_out_share, std::uint64_t seed);

}  // namespace rp
