/* A program in C, linked to the shared library: saves a part of a tensor, lists, loads all of it in
 * another type, verifies, and is told what is wrong. */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "checkpoint/c/tessera_checkpoint.h"

#define CHECK(condition)                                                     \
  do {                                                                       \
    if (!(condition)) {                                                      \
      printf("%d: %s: %s\n", __LINE__, #condition, tessera_error_message()); \
      return 1;                                                              \
    }                                                                        \
  } while (0)

static uint64_t seen_bytes;

static void See(void* context, uint64_t done_bytes, uint64_t total_bytes) {
  (void)context;
  (void)total_bytes;
  seen_bytes = done_bytes;
}

static int Save(const char* folder_name, float* rows) {
  const int64_t shape[] = {4, 3}, all[] = {0, 0};
  tessera_folder* folder = NULL;
  tessera_state* state = NULL;
  char* report = NULL;
  const tessera_save_options options = {.struct_bytes = sizeof(options), .progress = See};
  CHECK(tessera_folder_open(folder_name, TESSERA_CREATE, "", &folder) == TESSERA_OK);
  CHECK(tessera_state_create(&state) == TESSERA_OK);
  CHECK(tessera_state_add_tensor(state, "w", TESSERA_WEIGHT, TESSERA_F32, 2, shape) == TESSERA_OK);
  CHECK(tessera_state_add_shard(state, rows, 12, all, shape, NULL, TESSERA_READ_ONLY) ==
        TESSERA_OK);
  CHECK(tessera_state_add_alias(state, "v", "w") == TESSERA_OK);
  CHECK(tessera_state_set_entry(state, "mine", "abc", 3) == TESSERA_OK);
  CHECK(tessera_folder_save(folder, 7, state, &options, &report) == TESSERA_OK);
  CHECK(strstr(report, "\"directory\":\"step-00000007\"") != NULL);
  CHECK(seen_bytes > 0);
  tessera_text_free(report);
  CHECK(tessera_folder_save(folder, 7, state, NULL, NULL) == TESSERA_ALREADY_EXISTS);
  CHECK(tessera_folder_list(folder, &report) == TESSERA_OK);
  CHECK(strcmp(report, "[{\"step\":7,\"directory\":\"step-00000007\"}]") == 0);
  tessera_text_free(report);
  tessera_state_free(state);
  tessera_folder_free(folder);
  return 0;
}

static int Load(const char* folder_name, const float* rows) {
  const int64_t shape[] = {4, 3}, offset[] = {1, 1}, box[] = {2, 2};
  double loaded[4] = {0};
  tessera_checkpoint* checkpoint = NULL;
  tessera_state* state = NULL;
  char* report = NULL;
  const void* entry = NULL;
  size_t entry_bytes = 0;
  int64_t step = 0;
  const tessera_load_options options = {.struct_bytes = sizeof(options), .allow_unexpected = 1};
  CHECK(tessera_checkpoint_open(folder_name, NULL, &checkpoint) == TESSERA_OK);
  CHECK(tessera_checkpoint_step(checkpoint, &step) == TESSERA_OK && step == 7);
  CHECK(tessera_checkpoint_step(checkpoint, NULL) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_checkpoint_entry(checkpoint, "mine", &entry, &entry_bytes) == TESSERA_OK);
  CHECK(entry_bytes == 3 && memcmp(entry, "abc", 3) == 0);
  CHECK(tessera_checkpoint_read_tensor(checkpoint, "v", TESSERA_F64, 2, offset, box, NULL, loaded,
                                       4, NULL) == TESSERA_OK);
  CHECK(loaded[0] == rows[4] && loaded[3] == rows[8]);
  memset(loaded, 0, sizeof(loaded));
  CHECK(tessera_state_create(&state) == TESSERA_OK);
  CHECK(tessera_state_add_tensor(state, "w", TESSERA_WEIGHT, TESSERA_F64, 2, shape) == TESSERA_OK);
  CHECK(tessera_state_add_flat_range(state, loaded, (const int64_t[]){0, 0}, shape, 4, 8, 0) ==
        TESSERA_OK);
  CHECK(tessera_checkpoint_load(checkpoint, state, &options, NULL) == TESSERA_OK);
  CHECK(loaded[0] == rows[4] && loaded[3] == rows[7]);
  CHECK(tessera_checkpoint_load(checkpoint, state, NULL, &report) == TESSERA_OK || report == NULL);
  tessera_text_free(report);
  tessera_state_free(state);
  tessera_checkpoint_free(checkpoint);
  /* The names are for PaddleNLP's format; a program that was built before them gives none. */
  tessera_read_options read = {.struct_bytes = sizeof(read), .parameter_names_file = "names.json"};
  CHECK(tessera_checkpoint_open_named(folder_name, &read, &checkpoint) == TESSERA_NOT_FOUND);
  CHECK(strstr(tessera_error_message(), "in the format paddle") != NULL);
  read.struct_bytes = offsetof(tessera_read_options, parameter_names_file);
  CHECK(tessera_checkpoint_open_named(folder_name, &read, &checkpoint) == TESSERA_OK);
  tessera_checkpoint_free(checkpoint);
  CHECK(tessera_checkpoint_open_named(folder_name, NULL, &checkpoint) == TESSERA_OK);
  tessera_checkpoint_free(checkpoint);
  CHECK(tessera_verify(folder_name, 1, NULL, &report) == TESSERA_OK);
  CHECK(strstr(report, "\"good\":true") != NULL);
  tessera_text_free(report);
  return 0;
}

/* A job of ten steps that is ended after the fifth and started again. */
static int Manage(const char* folder_name) {
  const int64_t shape[] = {2}, all[] = {0};
  float memory[2] = {0};
  tessera_state* state = NULL;
  tessera_manager* manager = NULL;
  char* report = NULL;
  int64_t found = 0;
  tessera_folder* folder = NULL;
  tessera_checkpoint* checkpoint = NULL;
  tessera_decision decision = {.struct_bytes = sizeof(decision)};
  tessera_manager_options options = {
      .struct_bytes = sizeof(options), .last_step = 10, .interval_steps = 4, .keep_newest = 1};
  CHECK(tessera_state_create(&state) == TESSERA_OK);
  CHECK(tessera_state_add_tensor(state, "w", TESSERA_WEIGHT, TESSERA_F32, 1, shape) == TESSERA_OK);
  CHECK(tessera_state_add_shard(state, memory, 2, all, shape, NULL, 0) == TESSERA_OK);
  for (int run = 0; run < 2; ++run) {
    CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_OK);
    CHECK(tessera_manager_resume(manager, state, &found, &report) == TESSERA_OK);
    CHECK(found == (run == 0 ? -1 : 5));
    CHECK(strstr(report, run == 0 ? "\"step\":null" : "\"step\":5") != NULL);
    CHECK(memory[0] == 5.0F * (float)run);
    tessera_text_free(report);
    for (int64_t step = run == 0 ? 1 : 6; step <= 10; ++step) {
      memory[0] = memory[1] = (float)step;
      CHECK(tessera_manager_save(manager, step, run == 0 && step == 5 ? 15 : 0, 1, state, &decision,
                                 &report) == TESSERA_OK);
      const int ends = strstr(report, "\"end\":null") == NULL;
      const int saves = step == 4 || step == 8 || ends;
      CHECK((strstr(report, "\"save\":null") == NULL) == saves);
      CHECK(decision.save == (saves ? TESSERA_SAVE_PERMANENT : TESSERA_SAVE_NONE));
      CHECK(decision.end == (!ends      ? TESSERA_END_NONE
                             : run == 0 ? TESSERA_END_SIGNAL
                                        : TESSERA_END_LAST_STEP));
      CHECK(!ends || strstr(report, run == 0 ? "\"signal\"" : "\"last step\"") != NULL);
      tessera_text_free(report);
      if (ends) break;
    }
    memory[0] = memory[1] = 0;
    tessera_manager_free(manager);
  }
  /* Back to a step before those of the folder. */
  CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_OK);
  CHECK(tessera_manager_begin(manager, -1, -1) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_manager_begin(manager, 6, 8) == TESSERA_OK);
  const size_t wrong_sizes[] = {0, sizeof(size_t), sizeof(decision) + 1, (size_t)1 << 62};
  for (size_t i = 0; i < sizeof(wrong_sizes) / sizeof(wrong_sizes[0]); ++i) {
    decision.struct_bytes = wrong_sizes[i];
    CHECK(tessera_manager_save(manager, 7, 0, 1, state, &decision, NULL) ==
          TESSERA_INVALID_ARGUMENT);
  }
  CHECK(tessera_manager_save(manager, 7, 0, 1, state, NULL, NULL) == TESSERA_FAILED_PRECONDITION);
  CHECK(strstr(tessera_error_message(), "later steps (10) than this run starts from (6)") != NULL);
  CHECK(tessera_manager_abandon_later(manager, 6, &report) == TESSERA_OK);
  CHECK(strcmp(report, "[\"step-00000010.abandoned\"]") == 0);
  tessera_text_free(report);
  CHECK(tessera_manager_begin(manager, 6, 8) == TESSERA_OK);
  CHECK(tessera_manager_save(manager, 7, 0, 1, state, NULL, NULL) == TESSERA_OK);
  CHECK(tessera_manager_save(manager, 8, 0, 1, state, NULL, &report) == TESSERA_OK);
  CHECK(strstr(report, "\"last step\"") != NULL);
  tessera_text_free(report);
  tessera_manager_free(manager);
  /* The checkpoint of step 9 is young enough to stay beside that of step 10. */
  options.keep_within_seconds = 3600;
  options.interval_steps = 1;
  CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_OK);
  CHECK(tessera_manager_begin(manager, 8, 10) == TESSERA_OK);
  CHECK(tessera_manager_save(manager, 9, 0, 1, state, NULL, NULL) == TESSERA_OK);
  CHECK(tessera_manager_save(manager, 10, 0, 1, state, NULL, NULL) == TESSERA_OK);
  tessera_manager_free(manager);
  CHECK(tessera_folder_open(folder_name, 0, "", &folder) == TESSERA_OK);
  CHECK(tessera_folder_open_step(folder, 9, &checkpoint) == TESSERA_OK);
  tessera_checkpoint_free(checkpoint);
  CHECK(tessera_folder_prune(folder, 0, -1) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_folder_prune(folder, 1, 9) == TESSERA_OK);
  CHECK(tessera_folder_open_step(folder, 9, &checkpoint) == TESSERA_OK);
  tessera_checkpoint_free(checkpoint);
  CHECK(tessera_folder_prune(folder, 1, -1) == TESSERA_OK);
  CHECK(tessera_folder_open_step(folder, 9, &checkpoint) == TESSERA_NOT_FOUND);
  tessera_folder_free(folder);
  options.keep_within_seconds = -1;
  CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_INVALID_ARGUMENT);
  options.keep_within_seconds = 0;
  options.keep_newest = -1;
  CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_INVALID_ARGUMENT);
  tessera_state_free(state);
  return 0;
}

static void KillAtTheEnd(void* context, uint64_t done_bytes, uint64_t total_bytes) {
  if (*(const int*)context && done_bytes == total_bytes) raise(SIGKILL);
}

/* A job whose second save is killed once all of it is staged, before the upload, and that is started
 * again: it has lost the second step alone. */
static int Upload(const char* folder_name, const char* tmp_folder) {
  const int64_t shape[] = {2}, all[] = {0};
  float memory[2] = {0};
  int kills = 0;
  tessera_state* state = NULL;
  tessera_manager* manager = NULL;
  char* report = NULL;
  tessera_save_options background = {
      .struct_bytes = sizeof(background), .progress = KillAtTheEnd, .progress_context = &kills};
  tessera_manager_options options = {.struct_bytes = sizeof(options),
                                     .background = &background,
                                     .last_step = 2,
                                     .interval_steps = 1,
                                     .async_upload = 1,
                                     .async_upload_tmp_folder = tmp_folder};
  CHECK(tessera_state_create(&state) == TESSERA_OK);
  CHECK(tessera_state_add_tensor(state, "w", TESSERA_WEIGHT, TESSERA_F32, 1, shape) == TESSERA_OK);
  CHECK(tessera_state_add_shard(state, memory, 2, all, shape, NULL, 0) == TESSERA_OK);
  for (int run = 0; run < 2; ++run) {
    const pid_t child = run == 0 ? fork() : 0;
    if (child > 0) {
      int status = 0;
      CHECK(waitpid(child, &status, 0) == child);
      CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
      continue;
    }
    CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_OK);
    CHECK(tessera_manager_resume(manager, state, NULL, &report) == TESSERA_OK);
    CHECK(strstr(report, run == 0 ? "\"step\":null" : "\"step\":1") != NULL);
    CHECK(memory[0] == (float)run);
    tessera_text_free(report);
    for (int64_t step = run + 1; step <= 2; ++step) {
      kills = run == 0 && step == 2;
      CHECK(tessera_manager_wait_copied(manager, NULL, 0) == TESSERA_OK);
      memory[0] = memory[1] = (float)step;
      CHECK(tessera_manager_save(manager, step, 0, 1, state, NULL, NULL) == TESSERA_OK);
      CHECK(tessera_manager_poll(manager, 1, &report) == TESSERA_OK);
      tessera_text_free(report);
    }
    tessera_manager_free(manager);
  }
  options.background = NULL;
  CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_INVALID_ARGUMENT);
  CHECK(strstr(tessera_error_message(), "async_upload") != NULL);
  tessera_state_free(state);
  return 0;
}

/* What a program does not ask for stays until it does: outcomes of saves in the background, and the
 * message of a call that failed before others succeeded. */
static int AskLater(const char* folder_name) {
  const int64_t shape[] = {2}, all[] = {0};
  float memory[2] = {0};
  tessera_state* state = NULL;
  tessera_manager* manager = NULL;
  tessera_folder* folder = NULL;
  char* report = NULL;
  const tessera_save_options background = {.struct_bytes = sizeof(background)};
  const tessera_manager_options options = {
      .struct_bytes = sizeof(options), .background = &background, .interval_steps = 1};
  CHECK(tessera_state_create(&state) == TESSERA_OK);
  CHECK(tessera_state_add_tensor(state, "w", TESSERA_WEIGHT, TESSERA_F32, 1, shape) == TESSERA_OK);
  CHECK(tessera_state_add_shard(state, memory, 2, all, shape, NULL, 0) == TESSERA_OK);
  CHECK(tessera_manager_open(folder_name, &options, &manager) == TESSERA_OK);
  CHECK(tessera_folder_open(folder_name, 0, "", &folder) == TESSERA_OK);
  CHECK(tessera_folder_prune(folder, 0, -1) == TESSERA_INVALID_ARGUMENT);
  const char* const message = tessera_error_message();
  for (int step = 1; step <= 4; ++step) { /* step 1 is saved twice, the second time in vain */
    CHECK(tessera_manager_save(manager, step < 3 ? 1 : step, 0, 1, state, NULL, NULL) ==
          TESSERA_OK);
    CHECK(tessera_manager_wait_copied(manager, NULL, 0) == TESSERA_OK);
  }
  CHECK(strstr(message, "keep") != NULL && strcmp(message, tessera_error_message()) == 0);
  CHECK(tessera_manager_poll(manager, 1, NULL) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_manager_poll(manager, 1, &report) == TESSERA_OK);
  CHECK(strstr(report, "\"error\"") != NULL && strstr(report, "\"step\":4") != NULL);
  tessera_text_free(report);
  tessera_manager_free(manager);
  tessera_folder_free(folder);
  tessera_state_free(state);
  return 0;
}

/* A device whose memory is the heap: handles are arrays of 4 x 3 floats. */
static int allocations, copies_in_flight, copies_started;

static int32_t StartCopies(void* context, const tessera_box_copy* copies, size_t count,
                           int32_t to_device, void** pending) {
  *pending = context;
  if (context == NULL) {
    tessera_set_error_message("the device is asleep");
    return TESSERA_UNAVAILABLE;
  }
  for (size_t i = 0; i < count; ++i) {
    const tessera_box_copy* const copy = &copies[i];
    float* host = copy->host;
    if (copy->dims != 2 || copy->host_dtype != TESSERA_F32) return TESSERA_INTERNAL;
    for (int64_t row = 0; row < copy->shape[0]; ++row) {
      float* const device = (float*)copy->handle + (copy->offset[0] + row) * 3 + copy->offset[1];
      const size_t bytes = (size_t)copy->shape[1] * sizeof(float);
      memcpy(to_device ? device : host, to_device ? host : device, bytes);
      host += copy->shape[1];
    }
  }
  ++copies_in_flight;
  ++copies_started;
  return TESSERA_OK;
}

static int32_t WaitForCopies(void* context, void* pending) {
  return context == pending ? TESSERA_OK : TESSERA_INTERNAL;
}

static void ReleaseCopies(void* context, void* pending) {
  if (context == pending) --copies_in_flight;
}

static int32_t Allocate(void* context, size_t bytes, void** memory) {
  (void)context;
  ++allocations;
  *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  return *memory != NULL ? TESSERA_OK : TESSERA_RESOURCE_EXHAUSTED;
}

static void Free(void* context, void* memory) {
  (void)context;
  --allocations;
  free(memory);
}

static tessera_state* OnDevice(void* context, float* rows) {
  const int64_t shape[] = {4, 3}, all[] = {0, 0};
  const tessera_device device = {.struct_bytes = sizeof(device),
                                 .context = context,
                                 .start_copies = StartCopies,
                                 .wait = WaitForCopies,
                                 .release = ReleaseCopies,
                                 .allocate = Allocate,
                                 .free = Free};
  tessera_state* state = NULL;
  if (tessera_state_create(&state) == TESSERA_OK &&
      tessera_state_add_tensor(state, "w", TESSERA_WEIGHT, TESSERA_F32, 2, shape) == TESSERA_OK &&
      tessera_state_add_device_shard(state, &device, rows, (void*)4096, 12, 0, all, shape, NULL,
                                     0) == TESSERA_OK) {
    return state;
  }
  return NULL;
}

/* Saves in the background from a device, which no address leads to, and loads there. */
static int SaveAndLoadOnDevice(const char* folder_name, float* rows) {
  float loaded[12] = {0};
  int context = 0;
  tessera_folder* folder = NULL;
  tessera_saver* saver = NULL;
  tessera_checkpoint* checkpoint = NULL;
  char* report = NULL;
  CHECK(tessera_folder_open(folder_name, 0, "", &folder) == TESSERA_OK);
  CHECK(tessera_saver_create(folder, NULL, &saver) == TESSERA_OK);
  for (int step = 8; step < 10; ++step) {
    tessera_state* const state = OnDevice(&context, rows);
    CHECK(state != NULL);
    CHECK(tessera_saver_start(saver, step, state) == TESSERA_OK);
    tessera_state_free(state);
    CHECK(tessera_saver_wait_copied(saver, (void*)4096, sizeof(loaded)) == TESSERA_OK);
    CHECK(copies_started == step - 7);
    CHECK(tessera_saver_poll(saver, 1, &report) == TESSERA_OK);
    CHECK(strstr(report, "error") == NULL);
    tessera_text_free(report);
    CHECK(allocations == 1); /* the second state has the same device */
  }
  tessera_saver_free(saver);
  CHECK(tessera_folder_open_latest(folder, &checkpoint) == TESSERA_OK);
  tessera_state* state = OnDevice(&context, loaded);
  CHECK(tessera_checkpoint_load(checkpoint, state, NULL, NULL) == TESSERA_OK);
  CHECK(memcmp(loaded, rows, sizeof(loaded)) == 0);
  tessera_state_free(state);
  state = OnDevice(NULL, loaded);
  CHECK(tessera_checkpoint_load(checkpoint, state, NULL, NULL) == TESSERA_UNAVAILABLE);
  CHECK(strstr(tessera_error_message(), "the device is asleep") != NULL);
  tessera_state_free(state);
  tessera_checkpoint_free(checkpoint);
  tessera_folder_free(folder);
  CHECK(allocations == 0 && copies_in_flight == 0);
  return 0;
}

static int Refuse(const char* folder_name) {
  const int64_t shape[] = {2};
  tessera_state* state = NULL;
  tessera_checkpoint* checkpoint = NULL;
  CHECK(tessera_abi_version() == TESSERA_ABI_VERSION);
  CHECK(tessera_checkpoint_open("/no/such/folder", "", &checkpoint) == TESSERA_NOT_FOUND);
  CHECK(checkpoint == NULL && strstr(tessera_error_message(), "/no/such/folder") != NULL);
  CHECK(tessera_checkpoint_open(NULL, NULL, &checkpoint) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_checkpoint_open(folder_name, NULL, &checkpoint) == TESSERA_OK);
  CHECK(tessera_folder_list((tessera_folder*)checkpoint, NULL) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_state_create(&state) == TESSERA_OK);
  CHECK(tessera_state_add_tensor(state, "w", 9, TESSERA_F32, 1, shape) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_state_add_tensor(state, "w", 1, 99, 1, shape) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_state_add_tensor(state, "w", 1, 1, 33, shape) == TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_state_add_shard(state, NULL, 0, shape, shape, NULL, 0) == TESSERA_INVALID_ARGUMENT);
  tessera_device device = {.struct_bytes = sizeof(device)};
  CHECK(tessera_state_add_device_shard(state, NULL, NULL, &device, 2, 0, shape, shape, NULL, 0) ==
        TESSERA_INVALID_ARGUMENT);
  CHECK(tessera_state_add_device_shard(state, &device, NULL, &device, 2, 0, shape, shape, NULL,
                                       0) == TESSERA_INVALID_ARGUMENT);
  CHECK(strstr(tessera_error_message(), "a callback is NULL") != NULL);
  tessera_load_options options = {.struct_bytes = 3};
  CHECK(tessera_checkpoint_load(checkpoint, state, &options, NULL) == TESSERA_INVALID_ARGUMENT);
  options.struct_bytes = sizeof(size_t) + 4; /* half of a pointer */
  CHECK(tessera_checkpoint_load(checkpoint, state, &options, NULL) == TESSERA_INVALID_ARGUMENT);
  /* A newer program's structure, with a member that this library does not know. */
  struct {
    tessera_load_options known;
    int64_t new_member;
  } newer = {.known = {.struct_bytes = sizeof(newer), .allow_unexpected = 1}};
  CHECK(tessera_checkpoint_load(checkpoint, state, &newer.known, NULL) == TESSERA_OK);
  newer.new_member = 1;
  CHECK(tessera_checkpoint_load(checkpoint, state, &newer.known, NULL) == TESSERA_UNIMPLEMENTED);
  tessera_state_free(state);
  tessera_checkpoint_free(checkpoint);
  return 0;
}

int main(void) {
  float rows[12];
  char folder[1100];
  const char* scratch = getenv("TEST_TMPDIR");
  snprintf(folder, 1024, "%s/c_test", scratch == NULL ? "/tmp" : scratch);
  for (int i = 0; i < 12; ++i) rows[i] = (float)i + 0.5F;
  if (Save(folder, rows) || Load(folder, rows) || Refuse(folder)) return 1;
  if (SaveAndLoadOnDevice(folder, rows)) return 1;
  strcat(folder, "-managed");
  if (Manage(folder)) return 1;
  char uploads[1100];
  snprintf(uploads, sizeof(uploads), "%.1024s-uploads", folder);
  strcat(folder, "-asked");
  if (AskLater(folder)) return 1;
  strcat(folder, "-remote");
  return Upload(folder, uploads);
}
