// coordinator/pipeline_state.h
// Counts the rounds, steps and versions of one pipeline: the numbers that the next round and step
// get.
//
// Owned by the Coordinator. Only the caller's thread uses the counts. The RoundFlow holds what
// rounds leave behind.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/run_order.h"
#include "coordinator/exchange/call_hash.h"
#include "coordinator/exchange/plan_exchange.h"
#include "coordinator/rounds/round.h"
#include "coordinator/run_plans/stage_plans.h"
#include "coordinator/updates/updates.h"
#include "hoststore/catalogue.h"

namespace rp {

struct PipelineSettings {
  bool adds_rounds = false;  // steps may have several rounds; the store has fp32 sums of gradients
  bool asynchronous = false;
  PlanSettings plan;
  std::optional<LossScaling> loss_scaling{};
  std::vector<int> nodes_of_rounds{0};  // of a step, from deal_rounds()
};

struct PipelineState {
  int number = 0;
  PipelineSettings settings;
  int first_trained_layer = 0;
  bool is_trained = false;  // false if all parameters are frozen
  std::unique_ptr<Updates> updates;
  std::unique_ptr<PlanExchange> plans;  // nullptr unless the workers exchange gradients with other nodes
  std::optional<Plan> agreed_plan{};    // the last one of these
  CallHash calls{};                     // of the calls so far that all nodes must make
  CallHash exchanges{};                 // of the stages of this node's rounds, if the workers exchange their gradients

  std::uint64_t num_rounds = 0;           // with gradients or graph, since the start of training
  std::uint64_t num_rounds_of_steps = 0;  // the part of num_rounds before the last step
  std::uint64_t num_evaluations = 0;      // rounds without gradients or graph, in this run
  std::uint64_t num_attempts = 0;         // of this node's rounds with gradients, in this run; no number is used twice
  std::uint64_t num_steps = 0;            // since the start of training
  Version version_of_step_0{};            // modulo 2^64: versions only grow, also when a state is loaded
  int rounds_since_step = 0;              // rounds with gradients since the last step
  bool evaluates_newest = false;
  bool is_stamped = false;  // the weights are stamped, and were not written outside of a step since

  // Returns the version of the weights after the last accepted step.
  [[nodiscard]] Version version() const { return version_of_step_0 + num_steps; }
  // Returns the version of the weights that the next round computes with.
  [[nodiscard]] Version used_version(bool newest) const {
    return version_of_step_0 + steps_in_weights(num_steps, /*asynchronous=*/!newest);
  }

  // Returns the node that computes the next round.
  [[nodiscard]] int node_of_next(const RoundTraits& traits) const;
  // Returns the pipeline's next round, without plan, slots and inputs. REQUIRES: count() is called
  // once the round is accepted.
  [[nodiscard]] std::shared_ptr<Round> next_round(const RoundTraits& traits, const PipelineRecord& record) const;
  // `is_own`: this node computes the round.
  void count(const RoundTraits& traits, bool is_own);
  void count_backward(bool is_own);
  // Counts the stages of a round of this node whose gradients its workers exchange.
  void count_exchanges(const Round& round);
  // Returns the version of the weights that the rounds of this step have used.
  Version count_step(const StepRequest& request);
  void restart_at(std::uint64_t steps, std::uint64_t rounds, Version version);
};

}  // namespace rp
