// SPDX-License-Identifier: Apache-2.0
// The error words of the devices: what kernels found wrong in the values of a call.
#pragma once

#include "runtime/cuda/driver.hpp"
#include "templates/common/cuda/device_error.h"

#include <optional>

namespace rlk::templates {

// The word of a device, made at its first use; never freed. Throws CallError.
DeviceError& device_error(runtime::cuda::Driver& driver, int device);

// Throws InvalidArgument and clears the word if an error stands in it. A plain read.
void raise_device_error(DeviceError& error);

// Waits for the devices used so far (or this one alone), then raises what stands in their words.
void check_device_errors(std::optional<int> device);

}  // namespace rlk::templates
