/* A job that can be killed and started again with another number of shards: it saves every tenth
 * step, keeps the newest two checkpoints, and continues from the newest valid one.
 *   job_c FOLDER LAST_STEP SHARDS */

#include <stdio.h>
#include <stdlib.h>

#include "checkpoint/c/tessera_checkpoint.h"

enum { NUMBERS = 12 };

static int Fail(void) {
  fprintf(stderr, "%s\n", tessera_error_message());
  return 1;
}

int main(int argc, char** argv) {
  const int64_t whole[] = {NUMBERS};
  float numbers[NUMBERS] = {0};
  tessera_manager_options options = {
      .struct_bytes = sizeof(options), .interval_steps = 10, .keep_newest = 2};
  tessera_manager* manager = NULL;
  tessera_state* state = NULL;
  tessera_decision decision = {.struct_bytes = sizeof(decision)};
  int64_t shards, step = 0;
  if (argc != 4) return 2;
  options.last_step = atoll(argv[2]);
  shards = atoll(argv[3]);

  if (tessera_manager_open(argv[1], &options, &manager) != TESSERA_OK ||
      tessera_state_create(&state) != TESSERA_OK ||
      tessera_state_add_tensor(state, "numbers", TESSERA_WEIGHT, TESSERA_F32, 1, whole) !=
          TESSERA_OK) {
    return Fail();
  }
  for (int64_t i = 0; i < shards; ++i) {
    const int64_t size = NUMBERS / shards, offset = i * size;
    if (tessera_state_add_shard(state, numbers + offset, size, &offset, &size, NULL, 0) !=
        TESSERA_OK) {
      return Fail();
    }
  }

  if (tessera_manager_resume(manager, state, &step, NULL) != TESSERA_OK) return Fail();
  if (step < 0) step = 0; /* there is no checkpoint */
  printf("begins after step %lld\n", (long long)step);
  while (step < options.last_step && decision.end == TESSERA_END_NONE) {
    for (int i = 0; i < NUMBERS; ++i) numbers[i] += 1; /* the training */
    if (tessera_manager_save(manager, ++step, 0, 1, state, &decision, NULL) != TESSERA_OK) {
      return Fail();
    }
  }
  printf("ends after step %lld with %g\n", (long long)step, numbers[NUMBERS - 1]);
  tessera_state_free(state);
  tessera_manager_free(manager);
  return 0;
}
