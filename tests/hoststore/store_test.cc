#include "hoststore/store.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/common/expect_refusal.h"
#include "tests/common/present_pages.h"
#include "tests/common/temp_directory.h"
#include "tests/hoststore/processes.h"

namespace rp {
namespace {

StoreSettings small_settings() {
  StoreSettings settings;
  settings.backing = "memfd";
  settings.num_workers = 3;
  settings.arena_limit_bytes = std::uint64_t{16} << 20;
  return settings;
}

Catalogue small_catalogue() {
  const ParameterRequest weight{.name = "w", .dtype = DType::kBFloat16, .shape = {300}};
  return Catalogue::lay_out({{.name = "a", .parameters = {weight}}, {.name = "b", .parameters = {weight}}}, 2, false);
}

std::unique_ptr<Store> small_store() { return Store::create(small_settings(), small_catalogue()); }

std::unique_ptr<Store> attached(const Store& store) { return Store::attach(test::duplicates(store.descriptors())); }

// 64 MiB of bf16 weights: a store of half a GiB.
Catalogue large_catalogue() {
  const ParameterRequest weight{.name = "w", .dtype = DType::kBFloat16, .shape = {std::int64_t{1} << 25}};
  return Catalogue::lay_out({{.name = "a", .parameters = {weight}}}, 2, false);
}

// Returns whether all pages are there. While the kernel moves a page, that one is absent for a moment.
bool are_present(const void* data, std::uint64_t bytes) {
  constexpr int kLooks = 50;
  for (int look = 0; look < kLooks; ++look) {
    if (num_present_pages(data, bytes) == bytes / 4096) return true;
    usleep(10'000);
  }
  return false;
}

TEST(Store, IsPopulatedBeforeItsFirstUseInEachProcessThatAsksForIt) {
  const Catalogue catalogue = large_catalogue();
  const auto store = Store::create(small_settings(), catalogue);
  const auto view = attached(*store);
  *store->parameters(5) = std::byte{7};
  EXPECT_LT(num_present_pages(store->state(0), catalogue.state_bytes()), catalogue.state_bytes() / 4096)
      << "by page faults";
  store->populate_ahead(2);
  store->wait_until_populated();
  EXPECT_TRUE(are_present(store->state(0), catalogue.state_bytes()));
  EXPECT_TRUE(are_present(store->gradients(0), catalogue.gradient_bytes()));
  EXPECT_TRUE(are_present(store->parameters(0), catalogue.parameter_bytes()));
  view->populate_ahead(1);
  view->wait_until_populated();
  EXPECT_TRUE(are_present(view->gradients(0), catalogue.gradient_bytes()));
  EXPECT_TRUE(are_present(std::as_const(*view).parameters(0), catalogue.parameter_bytes()));
  EXPECT_EQ(*std::as_const(*view).parameters(5), std::byte{7});
}

TEST(Store, OfFilesOrOfAnEmulatedRunIsNotPopulated) {
  const Catalogue catalogue = large_catalogue();
  const TempDirectory directory;
  StoreSettings in_files = small_settings(), sparse = small_settings();
  in_files.params_on = directory.path().string();
  sparse.is_sparse = true;
  for (const StoreSettings& settings : {in_files, sparse}) {
    const auto store = Store::create(settings, catalogue);
    store->populate_ahead(2);
    store->wait_until_populated();
    EXPECT_EQ(num_present_pages(store->state(0), catalogue.state_bytes()), 0U);
  }
}

TEST(Store, IsTheSameInTheProcessThatAttachesToIt) {
  const auto store = small_store();
  const auto view = attached(*store);
  EXPECT_EQ(view->num_workers(), 3);
  EXPECT_EQ(view->header().run_id, store->header().run_id);
  EXPECT_EQ(view->catalogue().to_bytes(), store->catalogue().to_bytes());
  store->published(GroupId(1)).publish(Version(5));
  EXPECT_EQ(view->published(GroupId(1)).observe(), Version(5));
  EXPECT_EQ(view->published(GroupId(0)).observe(), Version(0));
  view->worker_words(2).events.publish(EventInEpoch(9));
  EXPECT_EQ(store->worker_words(2).events.observe(), EventInEpoch(9));
  *store->parameters(0) = std::byte{3};
  EXPECT_EQ(*std::as_const(*view).parameters(0), std::byte{3});
  *view->gradients(600) = std::byte{4};
  EXPECT_EQ(*store->gradients(600), std::byte{4});
  ASSERT_TRUE(store->command_writer(1).try_push({.slot = SlotInEpoch(12)}));
  Command command;
  EXPECT_FALSE(view->command_reader(0).try_pop(command));
  ASSERT_TRUE(view->command_reader(1).try_pop(command));
  EXPECT_EQ(command.slot, SlotInEpoch(12));
  view->arena(1).grow(1);
  *view->arena(1).data(5, 1) = std::byte{6};
  EXPECT_EQ(*store->block_data({.arena = 1, .offset = 5, .bytes = 1}), std::byte{6});
  EXPECT_EQ(store->arena(0).segment().bytes(), 0U);
}

TEST(Store, HasAPlaceOfItsOwnForEachFact) {
  const auto store = small_store();
  std::set<const void*> places;
  std::size_t num = 0;
  const auto add = [&](const void* place) {
    places.insert(place);
    ++num;
  };
  add(&store->epoch());
  for (std::uint32_t i = 0; i < 2; ++i) add(&store->published(GroupId(i)));
  for (std::uint32_t i = 0; i < 2; ++i) add(&store->gradient_released(UseId(i)));
  for (int worker = 0; worker < 3; ++worker) {
    add(&store->worker_words(worker));
    add(&store->failure(worker));
  }
  EXPECT_EQ(places.size(), num);
}

TEST(Store, SaysWhereLayersBeginInItsRegions) {
  const auto store = small_store();
  const std::vector<Store::Region> regions = store->regions();
  ASSERT_GE(regions.size(), 3U);  // and an arena for each process that computes
  for (const Store::Region& region : {regions[0], regions[1]}) {
    ASSERT_EQ(region.cuts.size(),
              region.data == store->parameters(0) ? 4U : 2U);  // two weight groups, two copies of the weights
    EXPECT_TRUE(std::is_sorted(region.cuts.begin(), region.cuts.end()));
    EXPECT_EQ(region.cuts.front(), 0U);
    EXPECT_LT(region.cuts.back(), region.bytes);
  }
  EXPECT_TRUE(regions[2].cuts.empty());
  EXPECT_EQ(store->regions()[0].cuts.data(), regions[0].cuts.data()) << "they are found once";
  EXPECT_FALSE(regions[0].is_read_only);
  EXPECT_TRUE(attached(*store)->regions()[0].is_read_only);
}

// The store has 200 GB, which no process touches.
TEST(Store, OfAnEmulatedRunHasItsSizesAndNoMemory) {
  StoreSettings settings = small_settings();
  settings.is_sparse = true;
  settings.arena_limit_bytes = std::uint64_t{1} << 36;
  const ParameterRequest weight{.name = "w", .dtype = DType::kBFloat16, .shape = {12'500'000'000}};
  const Catalogue catalogue = Catalogue::lay_out({{.name = "a", .parameters = {weight}}}, 1, false);
  const auto store = Store::create(settings, catalogue);
  EXPECT_GT(Store::needed(settings, catalogue).total(), std::uint64_t{190'000'000'000});
  const auto view = attached(*store);
  (void)view->arena(1).grow(std::uint64_t{1} << 35);
  *view->arena(1).data((std::uint64_t{1} << 35) - 1, 1) = std::byte{7};
  EXPECT_EQ(*store->arena(1).data((std::uint64_t{1} << 35) - 1, 1), std::byte{7});
  EXPECT_LT(store->allocated().total(), std::uint64_t{2} << 20);
  settings.emulated_memory_bytes = std::uint64_t{1} << 37;
  expect_error(ExitCode::kNoResource, {"the host store needs", "the emulated machine has 128 GiB"},
               [&] { (void)Store::create(settings, catalogue); });
}

TEST(Store, ReservesExactlyWhatItSaysItNeeds) {
  const StoreBytes needed = Store::needed(small_settings(), small_catalogue());
  const auto store = small_store();
  const std::vector<int> descriptors = store->descriptors();
  std::uint64_t reserved = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    reserved += Segment::attach(UniqueFd(dup(descriptors[i])), "").bytes();
  }
  EXPECT_EQ(reserved, needed.total());
  EXPECT_EQ(descriptors.size(), 4U + 3U + 1U);
}

TEST(Store, HasAllocatedWhatItReservedAndThenWhatItsArenasTake) {
  const StoreBytes needed = Store::needed(small_settings(), small_catalogue());
  const auto store = small_store();
  EXPECT_EQ(store->allocated().parameters, needed.parameters);
  EXPECT_EQ(store->allocated().state, needed.state);
  EXPECT_EQ(store->allocated().gradients, needed.gradients);
  EXPECT_EQ(store->allocated().control, align_up(needed.control, 4096));
  EXPECT_EQ(store->allocated().activations, 0U);
  store->arena(1).grow(1);
  store->arena(kCoordinatorArena).grow(ArenaView::kPieceBytes + 1);
  EXPECT_EQ(store->allocated().activations, 3 * ArenaView::kPieceBytes);
}

// Returns the file system of a descriptor's file.
dev_t device_of(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_dev : 0;
}

TEST(Store, KeepsWeightsGradientsAndStateOnDiskIfAskedAndIsTheSameForWorkers) {
  const TempDirectory directory;
  StoreSettings settings = small_settings();
  settings.params_on = directory.path().string();
  const auto store = Store::create(settings, small_catalogue());
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  struct stat there {};
  ASSERT_EQ(stat(settings.params_on.c_str(), &there), 0);
  const std::vector<int> descriptors = store->descriptors();
  for (std::size_t i = 0; i < descriptors.size(); ++i) {
    EXPECT_EQ(device_of(descriptors[i]) == there.st_dev, i >= 1 && i <= 3) << "segment " << i;
  }
  const auto view = attached(*store);
  *store->parameters(0) = std::byte{3};
  EXPECT_EQ(*std::as_const(*view).parameters(0), std::byte{3});
  *view->gradients(600) = std::byte{4};
  EXPECT_EQ(*store->gradients(600), std::byte{4});
  store->state(4096)[7] = 5;
  EXPECT_EQ(store->state(4096)[7], 5);
}

TEST(Store, RefusesADiskThatIsTooSmallBeforeItTakesAny) {
  const TempDirectory directory;
  StoreSettings settings = small_settings();
  settings.params_on = directory.path().string();
  const Catalogue huge = Catalogue::lay_out(
      {{.name = "l", .parameters = {{.name = "w", .dtype = DType::kBFloat16, .shape = {std::int64_t{1} << 42}}}}}, 1,
      false);
  expect_error(
      ExitCode::kNoResource,
      {"--params-on " + settings.params_on, "needs 64.0 TiB", "gradients 8.00 TiB", "are free there", "make room"},
      [&] { (void)Store::create(settings, huge); });
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Store, RefusesAModelThatDoesNotFitIntoMemoryBeforeItTakesAny) {
  const Catalogue huge = Catalogue::lay_out(
      {{.name = "l", .parameters = {{.name = "w", .dtype = DType::kBFloat16, .shape = {std::int64_t{1} << 40}}}}}, 1,
      false);
  expect_error(ExitCode::kNoResource,
               {"16.0 TiB", "parameters 2.00 TiB", "optimizer state 12.0 TiB", "available", "--params-on"},
               [&] { (void)Store::create(small_settings(), huge); });
}

TEST(Store, RefusesMoreWorkersAndLayersThanTheFormatHasRoomFor) {
  StoreSettings settings = small_settings();
  for (const std::uint32_t workers : {0U, 65U}) {
    settings.num_workers = workers;
    expect_error(ExitCode::kUsage, {"workers", "1 to 64"}, [&] { (void)Store::create(settings, small_catalogue()); });
  }
  const Catalogue deep = Catalogue::lay_out(std::vector<LayerRequest>(1025, LayerRequest{.name = "l"}), 1, false);
  expect_error(ExitCode::kUsage, {"1025 layers", "1024"}, [&] { (void)Store::create(small_settings(), deep); });
}

// Attaches to a store whose control header was changed by `spoil`.
void expect_lie_is_refused(const char* what, void (*spoil)(ControlHeader&)) {
  const auto store = small_store();
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, store->descriptors()[0], 0);
  ASSERT_NE(page, MAP_FAILED);
  spoil(*static_cast<ControlHeader*>(page));
  EXPECT_THROW((void)attached(*store), Error) << what;
  munmap(page, 4096);
}

TEST(Store, IsNotAttachedToIfItsHeaderIsWrong) {
  expect_lie_is_refused("magic", [](ControlHeader& header) { header.magic ^= 1; });
  expect_lie_is_refused("version", [](ControlHeader& header) { ++header.version; });
  expect_lie_is_refused("bytes", [](ControlHeader& header) { header.bytes += 4096; });
  expect_lie_is_refused("workers", [](ControlHeader& header) { ++header.num_workers; });
  expect_lie_is_refused("no workers", [](ControlHeader& header) { header.num_workers = 0; });
  expect_lie_is_refused("layers", [](ControlHeader& header) { header.num_layers = 1u << 31; });
  expect_lie_is_refused("few layers", [](ControlHeader& header) { header.num_layers = 1; });
  expect_lie_is_refused("pipelines", [](ControlHeader& header) { header.num_pipelines = 2; });
  expect_lie_is_refused("weight groups", [](ControlHeader& header) { header.num_groups = UINT32_MAX; });
  expect_lie_is_refused("few weight groups", [](ControlHeader& header) { header.num_groups = 1; });
  expect_lie_is_refused("uses", [](ControlHeader& header) { header.num_uses = UINT32_MAX; });
  expect_lie_is_refused("few uses", [](ControlHeader& header) { header.num_uses = 1; });
  expect_lie_is_refused("catalogue offset", [](ControlHeader& header) { header.catalogue_offset -= 64; });
  expect_lie_is_refused("far catalogue", [](ControlHeader& header) { header.catalogue_offset = UINT64_MAX; });
  expect_lie_is_refused("catalogue bytes", [](ControlHeader& header) { header.catalogue_bytes -= 1; });
}

TEST(Store, IsNotAttachedToByTheWrongDescriptors) {
  const auto store = small_store();
  const std::vector<int> all = store->descriptors();
  const auto attach = [](std::vector<int> fds) { (void)Store::attach(test::duplicates(fds)); };
  expect_error(ExitCode::kUserError, {"no host store of this version"}, [&] { attach({}); });
  expect_error(ExitCode::kUserError, {"no host store"}, [&] { attach({all.begin(), all.end() - 1}); });
  EXPECT_THROW(attach({all[1], all[0], all[2], all[3], all[4], all[5], all[6], all[7]}), Error);
  EXPECT_THROW(attach({all[0], all[4], all[2], all[3], all[4], all[5], all[6], all[7]}), Error)
      << "parameters too short";
  EXPECT_NO_THROW(attach(all));
}

// Returns whether the kernel leaves the page at `address` out of core dumps.
bool is_left_out_of_core_dumps(const void* address) {
  std::ifstream maps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) is_here = begin <= wanted && wanted < end;
    if (is_here && line.starts_with("VmFlags:")) return line.find(" dd") != std::string::npos;
  }
  return false;
}

TEST(Store, IsLeftOutOfCoreDumps) {
  const auto store = small_store();
  const auto view = attached(*store);
  EXPECT_TRUE(is_left_out_of_core_dumps(store->parameters(0)));
  EXPECT_TRUE(is_left_out_of_core_dumps(store->gradients(0)));
  EXPECT_TRUE(is_left_out_of_core_dumps(store->state(0)));
  EXPECT_TRUE(is_left_out_of_core_dumps(view->gradients(0)));
  store->arena(0).grow(1);
  EXPECT_TRUE(is_left_out_of_core_dumps(store->arena(0).data(0, 1)));
  EXPECT_FALSE(is_left_out_of_core_dumps(&store->epoch())) << "what the processes reported to each other is wanted";
}

TEST(StoreDeathTest, AWorkerThatWritesWeightsDiesOfIt) {
  const auto store = small_store();
  const int status = test::status_of_process([&] {
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer's handler would turn the signal into an exit
    const auto view = attached(*store);
    *view->parameters(8) = std::byte{1};
    return true;
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(WTERMSIG(status), SIGSEGV);
  EXPECT_EQ(*store->parameters(8), std::byte{0});
}

}  // namespace
}  // namespace rp
