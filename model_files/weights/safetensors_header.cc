#include "model_files/weights/safetensors_header.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "common/bad_input.h"

namespace rp {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxNameBytes = 1024;
constexpr std::size_t kMaxRank = 64;
constexpr std::uint64_t kMaxDimension = std::uint64_t{1} << 48;
constexpr std::string_view kMetadataKey = "__metadata__";

bool is_good_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~' && c != '/' && c != '\\'; });
}

// Follows the parser through the header with one state for each level, so its memory is bounded by
// what a valid header may contain. Each callback throws at the first element that is not allowed.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::filesystem::path& file) : file_(file) {}

  TensorMap take_tensors() { return std::move(tensors_); }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart: state_ = State::kTop; return true;
      case State::kTop:
        state_ = name_ == kMetadataKey ? State::kMetadata : State::kTensor;
        field_ = Field::kNone;
        seen_fields_ = 0;
        offsets_.clear();
        return true;
      default: return refuse_value();
    }
  }

  bool key(std::string& key) override {
    switch (state_) {
      case State::kTop: return top_key(key);
      case State::kMetadata:
        if (!metadata_keys_.insert(key).second) {
          throw bad_input(file_, "__metadata__ has the key ", quoted_name(key), " twice");
        }
        return true;
      default: return tensor_key(key);
    }
  }

  bool end_object() override {
    if (state_ == State::kTensor) finish_tensor();
    state_ = State::kTop;  // also after the end of the header, where the parser accepts nothing more
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor) return refuse_value();
    if (field_ == Field::kShape) {
      state_ = State::kShape;
    } else if (field_ == Field::kOffsets) {
      state_ = State::kOffsets;
    } else {
      return refuse_value();
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::kOffsets && offsets_.size() != 2) {
      throw bad_tensor("data_offsets has ", offsets_.size(), " entries instead of 2");
    }
    state_ = State::kTensor;
    return true;
  }

  bool number_unsigned(std::uint64_t value) override {
    if (state_ == State::kShape) {
      if (tensor_->shape.size() == kMaxRank) throw bad_tensor("shape has more than ", kMaxRank, " dimensions");
      if (value > kMaxDimension) throw bad_tensor("shape has the dimension ", value, ", more than 2^48");
      tensor_->shape.push_back(static_cast<std::int64_t>(value));
      return true;
    }
    if (state_ == State::kOffsets) {
      if (offsets_.size() == 2) throw bad_tensor("data_offsets has more than 2 entries");
      offsets_.push_back(value);
      return true;
    }
    return refuse_value();
  }

  bool string(std::string& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kTensor || field_ != Field::kDtype) return refuse_value();
    const auto dtype = dtype_from_name(value);
    if (!dtype) throw bad_tensor("dtype ", quoted_name(value), " is not supported");
    tensor_->dtype = *dtype;
    return true;
  }

  bool null() override { return refuse_value(); }
  bool boolean(bool) override { return refuse_value(); }
  bool number_integer(std::int64_t) override { return refuse_value(); }  // the parser calls this for negative numbers
  bool number_float(double, const std::string&) override { return refuse_value(); }
  bool binary(json::binary_t&) override { return refuse_value(); }

  bool parse_error(std::size_t position, const std::string&, const json::exception& error) override {
    const bool is_encoding = std::string_view(error.what()).find("UTF-8") != std::string_view::npos;
    throw bad_input(file_, "the header is not valid ", is_encoding ? "UTF-8" : "JSON", " at its byte ", position);
  }

 private:
  enum class State { kStart, kTop, kTensor, kShape, kOffsets, kMetadata };
  enum class Field { kNone, kDtype, kShape, kOffsets };

  static unsigned bit(Field field) { return 1U << static_cast<unsigned>(field); }
  [[nodiscard]] bool has_seen(Field field) const { return (seen_fields_ & bit(field)) != 0; }

  template <typename... Pieces>
  Error bad_tensor(const Pieces&... pieces) const {
    return bad_input(file_, "tensor ", quoted_name(name_), ": ", pieces...);
  }

  bool top_key(const std::string& key) {
    name_ = key;
    if (key == kMetadataKey) {
      if (has_metadata_) throw bad_input(file_, "__metadata__ is there twice");
      has_metadata_ = true;
      return true;
    }
    if (!is_good_name(key)) {
      throw bad_tensor("the name is not 1 to ", kMaxNameBytes,
                       " printable ASCII characters without spaces and slashes");
    }
    const auto [place, is_new] = tensors_.try_emplace(key);  // the only lookup; later callbacks use `tensor_`
    if (!is_new) throw bad_tensor("is there twice");
    tensor_ = &place->second;
    return true;
  }

  bool tensor_key(const std::string& key) {
    field_ = key == "dtype"          ? Field::kDtype
             : key == "shape"        ? Field::kShape
             : key == "data_offsets" ? Field::kOffsets
                                     : Field::kNone;
    if (field_ == Field::kNone) throw bad_tensor("has the unknown key ", quoted_name(key));
    if (has_seen(field_)) throw bad_tensor("has the key ", quoted_name(key), " twice");
    seen_fields_ |= bit(field_);
    return true;
  }

  void finish_tensor() {
    if (!has_seen(Field::kDtype)) throw bad_tensor("has no dtype");
    if (!has_seen(Field::kShape)) throw bad_tensor("has no shape");
    if (!has_seen(Field::kOffsets)) throw bad_tensor("has no data_offsets");
    if (offsets_[1] < offsets_[0]) {
      throw bad_tensor("data_offsets end at ", offsets_[1], ", before their beginning at ", offsets_[0]);
    }
    tensor_->offset = offsets_[0];
    tensor_->bytes = offsets_[1] - offsets_[0];
    std::uint64_t needed = dtype_bytes(tensor_->dtype);
    for (const std::int64_t dimension : tensor_->shape) {
      if (__builtin_mul_overflow(needed, static_cast<std::uint64_t>(dimension), &needed)) {
        throw bad_tensor("the size of shape ", shape_text(tensor_->shape), " overflows 64 bits");
      }
    }
    if (needed != tensor_->bytes) {
      throw bad_tensor("dtype ", dtype_name(tensor_->dtype), " and shape ", shape_text(tensor_->shape), " need ",
                       needed, " bytes, but data_offsets give it ", tensor_->bytes);
    }
    // The tensors so far have more bytes than the data up to their last end, so some of them
    // overlap. This early check rejects a long header with many such entries before it is read to
    // the end.
    end_ = std::max(end_, offsets_[1]);
    if (__builtin_add_overflow(total_bytes_, tensor_->bytes, &total_bytes_) || total_bytes_ > end_) {
      throw bad_tensor("begins at byte ", offsets_[0], " of the data and ends at ", offsets_[1],
                       ", where others lie (overlap)");
    }
  }

  // Throws the error for a value of the wrong kind in the current state.
  bool refuse_value() const {
    switch (state_) {
      case State::kStart: throw bad_input(file_, "the header is not a JSON object");
      case State::kTop: throw bad_input(file_, quoted_name(name_), ": is not a JSON object");
      case State::kMetadata: throw bad_input(file_, "__metadata__ holds a value that is not a string");
      case State::kShape: throw bad_tensor("shape holds something else than whole numbers from 0 on");
      case State::kOffsets: throw bad_tensor("data_offsets hold something else than whole numbers from 0 on");
      case State::kTensor: break;
    }
    if (field_ == Field::kDtype) throw bad_tensor("dtype is not a string");
    throw bad_tensor(field_ == Field::kShape ? "shape" : "data_offsets", " is not a list");
  }

  const std::filesystem::path& file_;
  State state_ = State::kStart;
  TensorMap tensors_;
  std::uint64_t total_bytes_ = 0;  // the sum over tensors_
  std::uint64_t end_ = 0;          // the largest end of a tensor in the data
  std::set<std::string> metadata_keys_;
  bool has_metadata_ = false;
  // State of the entry that is being read.
  std::string name_;
  Field field_ = Field::kNone;
  unsigned seen_fields_ = 0;  // a bit() for each field
  TensorInfo* tensor_ = nullptr;
  std::vector<std::uint64_t> offsets_;
};

// Every byte of the data must belong to exactly one tensor. Bytes that two tensors share, or that
// belong to none, cannot be weights.
void check_coverage(const std::filesystem::path& file, const TensorMap& tensors, std::uint64_t data_bytes) {
  std::vector<const TensorMap::value_type*> in_order;
  in_order.reserve(tensors.size());
  for (const auto& entry : tensors) in_order.push_back(&entry);
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.offset, a->second.bytes) < std::pair(b->second.offset, b->second.bytes);
  });
  std::uint64_t end = 0;
  for (const auto* entry : in_order) {
    const auto& [name, tensor] = *entry;
    if (tensor.offset != end) {
      throw bad_input(file, "tensor ", quoted_name(name), ": begins at byte ", tensor.offset, " of the data, ",
                      tensor.offset < end ? "inside the one before, which ends at " : "but the one before ends at ",
                      end, tensor.offset < end ? " (overlap)" : " (hole)");
    }
    end += tensor.bytes;  // cannot overflow: offset + bytes is an offset in the header
  }
  if (end != data_bytes) {
    throw bad_input(file, "the tensors need ", end, " bytes of data, but the file has ", data_bytes,
                    end > data_bytes ? " (is it truncated? fetch it again)" : " (bytes after the last tensor)");
  }
}

}  // namespace

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t dimension : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  return text + "]";
}

TensorMap parse_safetensors_header(const std::filesystem::path& file, std::string_view header,
                                   std::uint64_t data_bytes) {
  // The JSON library skips a byte order mark and treats a NUL as the end of its input; both are
  // errors here.
  const std::size_t first = header.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || header[first] != '{') throw bad_input(file, "the header is not a JSON object");
  if (header.find('\0') != std::string_view::npos) {
    throw bad_input(file, "the header is not valid JSON: it has a NUL byte");
  }
  HeaderReader reader(file);
  json::sax_parse(header.begin(), header.end(), &reader);
  TensorMap tensors = reader.take_tensors();
  check_coverage(file, tensors, data_bytes);
  return tensors;
}

}  // namespace rp
