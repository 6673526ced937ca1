// roundpipe/roundpipe.h
// Includes all headers that a program needs: Session, Model, Pipeline, losses, update rules,
// errors. They are: session.h (roles), layer.h and model.h (description), module.h (torch::nn
// modules as layers), models.h (Llama and others), trained_parts.h (LoRA), loss.h, batch.h and
// value.h (tensors and nested arguments of a call), recompute.h (data for the second forward pass),
// pipeline.h (rounds and steps), optimizer.h (update rules, schedules), plan.h (stages, times),
// memory_plan.h, error.h.
#pragma once

#include "roundpipe/batch.h"
#include "roundpipe/error.h"
#include "roundpipe/layer.h"
#include "roundpipe/loss.h"
#include "roundpipe/memory_plan.h"
#include "roundpipe/model.h"
#include "roundpipe/models.h"
#include "roundpipe/module.h"
#include "roundpipe/optimizer.h"
#include "roundpipe/pipeline.h"
#include "roundpipe/plan.h"
#include "roundpipe/recompute.h"
#include "roundpipe/session.h"
#include "roundpipe/trained_parts.h"
#include "roundpipe/value.h"
