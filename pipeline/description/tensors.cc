#include "pipeline/description/tensors.h"

#include <algorithm>

#include "common/text.h"
#include "models/layers/scalar_type.h"
#include "roundpipe/error.h"

namespace rp {

at::Tensor tensor_over(const std::byte* data, at::IntArrayRef shape, at::ScalarType type, c10::Device device) {
  return at::for_blob(const_cast<std::byte*>(data), shape)
      .options(at::TensorOptions().dtype(type).device(device))
      .target_device(device)
      .make_tensor();
}

at::Tensor tensor_over(const TensorView& view, c10::Device device) {
  if (view.desc.is_absent()) return {};
  return tensor_over(view.data, at::IntArrayRef(view.desc.shape.data(), static_cast<std::size_t>(view.desc.rank)),
                     scalar_type_of(view.desc.dtype), device);
}

Tensors tensors_over(const std::vector<TensorView>& views, c10::Device device) {
  Tensors tensors;
  for (const TensorView& view : views) tensors.push_back(tensor_over(view, device));
  return tensors;
}

at::Tensor parameter_view(Store& store, const TensorRecord& parameter, std::uint64_t copy) {
  const WeightGroupRecord& group = store.catalogue().weight_groups()[store.catalogue().uses()[parameter.use].group];
  const std::byte* data =
      store.parameters(group.parameter_offset[copy] + parameter.element_offset * dtype_bytes(group.dtype));
  return tensor_over({parameter.desc, data});
}

at::Tensor master_view(Store& store, const TensorRecord& parameter, Version version) {
  const WeightGroupRecord& group = store.catalogue().weight_groups()[store.catalogue().uses()[parameter.use].group];
  if (group.working_is_master()) return parameter_view(store, parameter, group.copy_of(version));
  if (store.catalogue().place().num_nodes > 1) return {};
  TensorDesc desc = parameter.desc;
  desc.dtype = group.master_dtype;
  const auto* data = reinterpret_cast<const std::byte*>(store.state(group.master_offset));
  return tensor_over({desc, data + parameter.element_offset * dtype_bytes(desc.dtype)});
}

at::Tensor moment_view(Store& store, const TensorRecord& parameter, std::uint64_t offset) {
  if (offset == kNoOffset || store.catalogue().place().num_nodes > 1) return {};
  TensorDesc desc = parameter.desc;
  desc.dtype = DType::kFloat32;
  return tensor_over({desc, reinterpret_cast<const std::byte*>(store.state(offset) + parameter.element_offset)});
}

namespace {

GroupId group_of(const Store& store, const TensorRecord& parameter) {
  return store.catalogue().uses()[parameter.use].group;
}

// `data`: of the element `first` of the parameter's weight group.
OwnedPart owned_part(const Store& store, const TensorRecord& parameter, const std::byte* data, std::uint64_t first,
                     DType dtype) {
  const ElementRange owned = owned_elements_of(store, parameter, store.catalogue().place().node);
  const std::uint64_t element = parameter.element_offset + owned.begin;
  return {.value = tensor_over(data + (owned.is_empty() ? 0 : element - first) * dtype_bytes(dtype),
                               {static_cast<std::int64_t>(owned.size())}, scalar_type_of(dtype)),
          .begin = owned.begin};
}

}  // namespace

ElementRange owned_elements_of(const Store& store, const TensorRecord& parameter, int node) {
  const ElementRange owned = store.catalogue().owned_by(node, group_of(store, parameter));
  const std::uint64_t length = parameter.desc.bytes() / dtype_bytes(parameter.desc.dtype);
  const auto place = [&](std::uint64_t element) {
    return std::clamp(element, parameter.element_offset, parameter.element_offset + length) - parameter.element_offset;
  };
  const ElementRange elements{.begin = place(owned.begin), .end = place(owned.end)};
  return elements.is_empty() ? ElementRange{} : elements;
}

OwnedPart owned_working(Store& store, const TensorRecord& parameter, Version version) {
  const GroupId group = group_of(store, parameter);
  return owned_part(store, parameter, store.working_copy(group, version).data(), 0,
                    store.catalogue().weight_groups()[group].dtype);
}

OwnedPart owned_master(Store& store, const TensorRecord& parameter, Version version) {
  const GroupId index = group_of(store, parameter);
  const WeightGroupRecord& group = store.catalogue().weight_groups()[index];
  if (group.working_is_master()) return owned_working(store, parameter, version);
  return owned_part(store, parameter, reinterpret_cast<const std::byte*>(store.state(group.master_offset)),
                    store.catalogue().owned(index).begin, group.master_dtype);
}

OwnedPart owned_moment(Store& store, const TensorRecord& parameter, std::uint64_t offset) {
  if (offset == kNoOffset) return {};
  return owned_part(store, parameter, reinterpret_cast<const std::byte*>(store.state(offset)),
                    store.catalogue().owned(group_of(store, parameter)).begin, DType::kFloat32);
}

bool is_first_use(const Catalogue& catalogue, const TensorRecord& parameter) {
  return catalogue.weight_groups()[catalogue.uses()[parameter.use].group].first_use == parameter.use;
}

std::vector<TensorView> views_of(Tensors& tensors, c10::Device device) {
  std::vector<TensorView> views;
  for (at::Tensor& tensor : tensors) {
    TensorView view;
    if (tensor.defined()) {
      if (tensor.dim() > kMaxRank) {
        throw Error(ExitCode::kUsage,
                    cat("a tensor with ", tensor.dim(), " dimensions; at most ", kMaxRank, " can travel"));
      }
      tensor = tensor.to(device).contiguous();
      view.desc.dtype = dtype_of(tensor.scalar_type());
      view.desc.rank = static_cast<std::int32_t>(tensor.dim());
      for (std::int64_t i = 0; i < tensor.dim(); ++i) view.desc.shape[i] = tensor.size(i);
      view.data = static_cast<const std::byte*>(tensor.const_data_ptr());
    }
    views.push_back(view);
  }
  return views;
}

std::string shapes_text(const Tensors& tensors) {
  std::string text;
  for (const at::Tensor& tensor : tensors) {
    text += text.empty() ? "" : ", ";
    if (!tensor.defined()) {
      text += "none";
      continue;
    }
    text += c10::toString(tensor.scalar_type());
    for (std::int64_t i = 0; i < tensor.dim(); ++i) text += (i == 0 ? "[" : ", ") + std::to_string(tensor.size(i));
    text += tensor.dim() == 0 ? "" : "]";
  }
  return text;
}

}  // namespace rp
