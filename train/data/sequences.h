// train/data/sequences.h
// Turns documents of a token file into sequences of equal length: one document each, padded, or
// several packed one after another.
#pragma once

#include <cstdint>
#include <vector>

#include "train/data/packing.h"
#include "train/data/token_file.h"

namespace rp {

inline constexpr std::int64_t kNotTrained = -100;  // the label of a position that is not trained

// B sequences of T tokens, row-major. At row b, position t, the model sees the tokens of its
// document up to t and learns to predict labels[t]: the document's next token, or kNotTrained.
struct TokenBatch {
  std::vector<std::int64_t> tokens;  // [B, T]
  std::vector<std::int64_t> labels;  // [B, T]
  std::vector<std::int64_t>
      documents;                 // [B, K]: lengths of the documents of each row, then zeros; empty without packing
  std::int64_t num_tokens = 0;   // positions that are not padding: those whose next token in the document is known
  std::int64_t num_trained = 0;  // labels that are not kNotTrained
};

// Statistics of the conversion from documents to sequences.
struct SequenceCounts {
  std::uint64_t sequences = 0;
  std::uint64_t pieces = 0;     // documents, or parts of long texts
  std::uint64_t tokens = 0;     // positions of the sequences that are not padding
  std::uint64_t trained = 0;    // labels that are not kNotTrained
  std::uint64_t truncated = 0;  // chat documents longer than a sequence: the rest of each is not used
  std::uint64_t dropped = 0;    // pieces without a trained label
};

// Cuts documents into pieces of at most T tokens, and puts the pieces into sequences.
//
// Only the first T tokens of a chat are used. Plain text is cut into consecutive pieces of T
// tokens; the label of a piece's last token is the first token of the next piece, so that each
// token is trained once an epoch. Pieces without a trained label are dropped. With packing, the
// pieces are packed by first fit decreasing, and attention stays within each piece. Without
// packing, each piece is a sequence; padding (token 0, not trained) follows it, where causal
// attention does not see it.
//
// The file must outlive this. Used by one thread at a time.
class Sequences {
 public:
  // `documents`: indices of documents of the file. Throws rp::Error (kBadInput) if none of them has
  // a trained label.
  Sequences(const TokenFile& file, const std::vector<std::uint64_t>& documents, std::int64_t length, bool is_packed);

  [[nodiscard]] std::uint64_t size() const { return counts_.sequences; }
  [[nodiscard]] std::int64_t length() const { return static_cast<std::int64_t>(length_); }
  [[nodiscard]] const SequenceCounts& counts() const { return counts_; }

  // Returns the pieces of each sequence, in the order of the file except where packing changes it.
  [[nodiscard]] Packs in_order() const;
  // Returns the pieces of each sequence in another order, and packed differently, for each seed and
  // epoch. The result is a pure function of those and of the lengths of the pieces, the same on
  // every machine. Without packing it depends on the number of pieces instead of their lengths.
  [[nodiscard]] Packs shuffled(std::uint64_t seed, std::uint64_t epoch) const;

  // Returns sequences `first` to `first + count` of an order as a batch; rows after the last
  // sequence are empty. Throws rp::Error (kBadInput) if the file has changed since it was opened.
  [[nodiscard]] TokenBatch batch(const Packs& order, std::uint64_t first, std::uint64_t count) const;
  // Returns a batch of `count` empty sequences.
  [[nodiscard]] TokenBatch empty_batch(std::uint64_t count) const;
  // Puts sequence `number` of an order into row `row` of the batch.
  void fill_row(const Packs& order, std::uint64_t number, std::uint64_t row, TokenBatch& batch) const;

 private:
  // Tokens `begin` to `end` of the file. The last token is only a label.
  struct Piece {
    std::uint64_t begin;
    std::uint64_t end;
    [[nodiscard]] std::uint32_t num_positions() const { return static_cast<std::uint32_t>(end - begin - 1); }
  };
  void add_pieces(std::uint64_t document);
  // Packs the pieces with these indices.
  [[nodiscard]] Packs packed(const std::vector<std::uint64_t>& pieces) const;
  // Writes a piece to the batch at position `place`, and returns the position after it.
  std::uint64_t fill_piece(const Piece& piece, std::uint64_t place, TokenBatch& batch) const;

  const TokenFile& file_;
  std::uint64_t length_;
  bool is_packed_;
  std::vector<Piece> pieces_;
  SequenceCounts counts_;
};

// The split of documents into those to train on and those held out for evaluation.
struct DocumentSplit {
  std::vector<std::uint64_t> trained;   // ascending
  std::vector<std::uint64_t> held_out;  // ascending
};

// Holds out a share of the documents, between 0 and 1: at least one if the share is above 0 and
// there are several documents, and never all. A pure function of its arguments.
[[nodiscard]] DocumentSplit split_documents(std::uint64_t num_documents, double held_out_share, std::uint64_t seed);

}  // namespace rp
