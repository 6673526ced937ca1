#include "pipeline/function_update.h"

#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "common/system/usable_cores.h"
#include "common/text.h"
#include "pipeline/description/tensors.h"
#include "roundpipe/error.h"

namespace rp {

namespace {

bool is_updated_by_function(const WeightGroupRecord& group) {
  return group.is_trained != 0 && group.is_correction == 0;
}

std::vector<GroupId> updated_groups(const Catalogue& catalogue, int pipeline) {
  std::vector<GroupId> groups = catalogue.trained_groups(pipeline);
  std::erase_if(groups, [&](GroupId group) { return !is_updated_by_function(catalogue.weight_groups()[group]); });
  return groups;
}

}  // namespace

FunctionUpdate::FunctionUpdate(Store& store, int pipeline)
    : store_(store), groups_(updated_groups(store.catalogue(), pipeline)) {
  const Catalogue& catalogue = store.catalogue();
  const PipelineRecord& record = catalogue.pipelines()[pipeline];
  for (int layer = 0; layer < static_cast<int>(record.num_layers); ++layer) {
    for (const TensorRecord& tensor : catalogue.tensors_of(record.catalogue_layer(layer))) {
      if (!is_first_use(catalogue, tensor) || !is_updated_by_function(group_of(catalogue.uses()[tensor.use].group)))
        continue;
      leaves_.push_back({.record = &tensor, .gradient = {}});
      at::Tensor leaf = master_view(store, tensor, Version(0));
      leaf.requires_grad_(true);
      parameters_.push_back({.name = cat(layer, ".", tensor.name.data()), .value = std::move(leaf)});
    }
  }
}

const std::vector<NamedParameter>& FunctionUpdate::parameters(Version version) {
  point_leaves_at(version);
  return parameters_;
}

void FunctionUpdate::allocate_gradients() {
  if (!gradients_.empty()) return;
  for (const GroupId group : groups_) {
    gradients_.push_back(at::empty({static_cast<std::int64_t>(group_of(group).num_elements)}, at::kFloat));
  }
  for (Leaf& leaf : leaves_) {
    const GroupId group = store_.catalogue().uses()[leaf.record->use].group;
    const auto place = std::lower_bound(groups_.begin(), groups_.end(), group) - groups_.begin();
    const TensorDesc& desc = leaf.record->desc;
    const at::IntArrayRef shape(desc.shape.data(), static_cast<std::size_t>(desc.rank));
    leaf.gradient =
        gradients_[place]
            .narrow(0, static_cast<std::int64_t>(leaf.record->element_offset), c10::multiply_integers(shape))
            .view(shape);
  }
}

// If two working copies alternate as master, the new one starts as a copy of the old one.
void FunctionUpdate::copy_masters(Version version) {
  for (const GroupId index : groups_) {
    const WeightGroupRecord& group = group_of(index);
    if (!group.working_is_master() || group.num_copies == 1) continue;
    std::ranges::copy(store_.working_copy(index, version - 1), store_.working_copy(index, version).begin());
  }
}

void FunctionUpdate::point_leaves_at(Version version) {
  for (std::size_t i = 0; i < leaves_.size(); ++i)
    parameters_[i].value.set_data(master_view(store_, *leaves_[i].record, version));
}

void FunctionUpdate::write_working_copies(Version version) {
  const c10::NoGradGuard no_grad;
  for (const Leaf& leaf : leaves_) {
    const WeightGroupRecord& group = group_of(store_.catalogue().uses()[leaf.record->use].group);
    if (group.working_is_master()) continue;
    parameter_view(store_, *leaf.record, group.copy_of(version)).copy_(master_view(store_, *leaf.record, version));
  }
}

void FunctionUpdate::run(Version version, bool skipped, const GradientWriter& write_gradient,
                         const std::function<void()>& function) {
  if (at::get_num_threads() != usable_cores()) at::set_num_threads(usable_cores());  // set for this thread
  copy_masters(version);
  point_leaves_at(version);
  if (!skipped) {
    allocate_gradients();
    for (std::size_t i = 0; i < groups_.size(); ++i)
      write_gradient(groups_[i], gradients_[i].mutable_data_ptr<float>());
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      at::Tensor& leaf = parameters_[i].value;
      leaf.mutable_grad() =
          leaf.scalar_type() == at::kFloat ? leaves_[i].gradient : leaves_[i].gradient.to(leaf.scalar_type());
    }
    function();
    for (std::size_t i = 0; i < leaves_.size(); ++i) {
      if (parameters_[i].value.const_data_ptr() == master_view(store_, *leaves_[i].record, version).const_data_ptr())
        continue;
      throw Error(ExitCode::kUsage, cat("step(): the function gave parameter ", parameters_[i].name,
                                        " other memory; change it in place, as by copy_()"));
    }
  }
  write_working_copies(version);
}

}  // namespace rp
