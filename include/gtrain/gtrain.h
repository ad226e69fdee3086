/* gtrain/gtrain.h: everything. See README.md for a complete program. */
#ifndef GTRAIN_GTRAIN_H
#define GTRAIN_GTRAIN_H

#include <gtrain/amp.h>
#include <gtrain/api.h>
#include <gtrain/autograd.h>
#include <gtrain/checkpoint.h>
#include <gtrain/context.h>
#include <gtrain/data.h>
#include <gtrain/doctor.h>
#include <gtrain/io.h>
#include <gtrain/memory.h>
#include <gtrain/nn.h>
#include <gtrain/onnx.h>
#include <gtrain/ops.h>
#include <gtrain/optim.h>
#include <gtrain/profile.h>
#include <gtrain/status.h>
#include <gtrain/step.h>
#include <gtrain/tensor.h>
#include <gtrain/train.h>
#include <gtrain/window.h>

#endif
