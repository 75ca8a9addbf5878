// SPDX-License-Identifier: Apache-2.0 OR MIT
/* driver.c - libFuzzer's entry; TARGET is the index in fuzz.rs. */
#include <stddef.h>
#include <stdint.h>

void erb_sim_fuzz(uint32_t target, const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	erb_sim_fuzz(TARGET, data, len);
	return 0;
}
