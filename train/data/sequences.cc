#include "train/data/sequences.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/bad_input.h"
#include "common/check.h"
#include "train/data/shuffle.h"

namespace rp {
namespace {

// Streams of the seed's random numbers. The stream of an epoch is its number, from 0.
constexpr std::uint64_t kPackingStream = std::uint64_t{1} << 62;
constexpr std::uint64_t kSplitStream = std::uint64_t{1} << 63;

// Returns packs with one item each.
Packs one_each(std::vector<std::uint64_t> items) {
  Packs packs{std::move(items), {}};
  packs.ends.resize(packs.items.size());
  std::iota(packs.ends.begin(), packs.ends.end(), 1);
  return packs;
}

}  // namespace

Sequences::Sequences(const TokenFile& file, const std::vector<std::uint64_t>& documents, std::int64_t length,
                     bool is_packed)
    : file_(file), length_(static_cast<std::uint64_t>(length)), is_packed_(is_packed) {
  RP_ASSERT(length > 0 && length <= INT32_MAX);
  for (const std::uint64_t document : documents) add_pieces(document);
  if (pieces_.empty()) {
    throw bad_input(file.path(), "none of its ", documents.size(), " documents has a trained token among its first ",
                    length_, "; raise the sequence length");
  }
  counts_.pieces = pieces_.size();
  counts_.sequences = is_packed_ ? in_order().size() : pieces_.size();
}

void Sequences::add_pieces(std::uint64_t document) {
  const std::uint64_t end = file_.document_end(document);
  const bool is_text = file_.kind() == TokenFile::Kind::kText;
  std::uint64_t begin = file_.document_begin(document);
  if (!is_text && end - begin > length_ + 1) ++counts_.truncated;
  do {
    const Piece piece{begin, std::min(end, begin + length_ + 1)};
    const TokenSpan span = file_.read(piece.begin, piece.end);
    // The first token is not a label in this piece.
    const auto trained = std::count(span.is_trained.begin() + 1, span.is_trained.end(), 1);
    if (trained > 0) {
      pieces_.push_back(piece);
      counts_.tokens += piece.num_positions();
      counts_.trained += static_cast<std::uint64_t>(trained);
    } else {
      ++counts_.dropped;
    }
    begin += length_;
  } while (is_text && begin + 1 < end);
}

Packs Sequences::packed(const std::vector<std::uint64_t>& pieces) const {
  std::vector<std::uint32_t> sizes;
  sizes.reserve(pieces.size());
  for (const std::uint64_t piece : pieces) sizes.push_back(pieces_[piece].num_positions());
  Packs packs = first_fit_decreasing(sizes, static_cast<std::uint32_t>(length_));
  for (std::uint64_t& item : packs.items) item = pieces[item];
  return packs;
}

Packs Sequences::in_order() const {
  std::vector<std::uint64_t> pieces(pieces_.size());
  std::iota(pieces.begin(), pieces.end(), 0);
  return is_packed_ ? packed(pieces) : one_each(std::move(pieces));
}

Packs Sequences::shuffled(std::uint64_t seed, std::uint64_t epoch) const {
  if (!is_packed_) return one_each(rp::shuffled(pieces_.size(), seed, epoch));
  const Packs packs = packed(rp::shuffled(pieces_.size(), seed, kPackingStream + epoch));
  Packs result;
  for (const std::uint64_t number : rp::shuffled(packs.size(), seed, epoch)) {
    const auto pack = packs.pack(number);
    result.items.insert(result.items.end(), pack.begin(), pack.end());
    result.ends.push_back(result.items.size());
  }
  return result;
}

TokenBatch Sequences::empty_batch(std::uint64_t count) const {
  TokenBatch batch;
  batch.tokens.assign(count * length_, 0);
  batch.labels.assign(count * length_, kNotTrained);
  return batch;
}

TokenBatch Sequences::batch(const Packs& order, std::uint64_t first, std::uint64_t count) const {
  TokenBatch batch = empty_batch(count);
  for (std::uint64_t row = 0; row < count && first + row < order.size(); ++row)
    fill_row(order, first + row, row, batch);
  return batch;
}

void Sequences::fill_row(const Packs& order, std::uint64_t number, std::uint64_t row, TokenBatch& batch) const {
  std::vector<std::int64_t> lengths;
  std::uint64_t place = row * length_;
  for (const std::uint64_t piece : order.pack(number)) {
    place = fill_piece(pieces_[piece], place, batch);
    lengths.push_back(pieces_[piece].num_positions());
  }
  if (!is_packed_) return;
  // Each row of `documents` has as many numbers as the row with the largest number of documents so
  // far needs.
  const std::uint64_t num_rows = batch.tokens.size() / length_;
  const std::uint64_t present = batch.documents.size() / num_rows;
  if (lengths.size() > present) {
    std::vector<std::int64_t> wider(num_rows * lengths.size(), 0);
    for (std::uint64_t i = 0; i < num_rows; ++i) {
      std::copy_n(batch.documents.begin() + static_cast<std::ptrdiff_t>(i * present), present,
                  wider.begin() + static_cast<std::ptrdiff_t>(i * lengths.size()));
    }
    batch.documents = std::move(wider);
  }
  const std::uint64_t width = batch.documents.size() / num_rows;
  std::copy(lengths.begin(), lengths.end(), batch.documents.begin() + static_cast<std::ptrdiff_t>(row * width));
}

std::uint64_t Sequences::fill_piece(const Piece& piece, std::uint64_t place, TokenBatch& batch) const {
  const TokenSpan span = file_.read(piece.begin, piece.end);
  for (std::size_t i = 0; i + 1 < span.tokens.size(); ++i) {
    batch.tokens[place + i] = span.tokens[i];
    if (span.is_trained[i + 1] == 0) continue;
    batch.labels[place + i] = span.tokens[i + 1];
    ++batch.num_trained;
  }
  batch.num_tokens += piece.num_positions();
  return place + piece.num_positions();
}

DocumentSplit split_documents(std::uint64_t num_documents, double held_out_share, std::uint64_t seed) {
  DocumentSplit split;
  const double wanted = std::round(held_out_share * static_cast<double>(num_documents));
  std::uint64_t num_held_out = 0;
  if (held_out_share > 0 && num_documents > 1) {
    num_held_out = std::clamp<std::uint64_t>(static_cast<std::uint64_t>(wanted), 1, num_documents - 1);
  }
  std::vector<bool> is_held_out(num_documents);
  if (num_held_out > 0) {
    const std::vector<std::uint64_t> order = shuffled(num_documents, seed, kSplitStream);
    for (std::uint64_t i = 0; i < num_held_out; ++i) is_held_out[order[i]] = true;
  }
  for (std::uint64_t i = 0; i < num_documents; ++i) (is_held_out[i] ? split.held_out : split.trained).push_back(i);
  return split;
}

}  // namespace rp
