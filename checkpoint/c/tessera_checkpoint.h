#ifndef TESSERA_CHECKPOINT_C_TESSERA_CHECKPOINT_H_
#define TESSERA_CHECKPOINT_C_TESSERA_CHECKPOINT_H_

/* The C interface of the checkpoint library, for programs in any language.
 *
 *   tessera_folder* folder;
 *   tessera_state* state;
 *   const int64_t shape[] = {8, 4}, offset[] = {3, 0}, rows[] = {5, 4};
 *   tessera_folder_open("/runs/a", TESSERA_CREATE, "", &folder);
 *   tessera_state_create(&state);
 *   tessera_state_add_tensor(state, "weight", TESSERA_WEIGHT, TESSERA_F32, 2, shape);
 *   tessera_state_add_shard(state, memory, 5 * 4, offset, rows, NULL, 0);
 *   if (tessera_save(folder, 100, state, NULL, NULL) != TESSERA_OK) puts(tessera_error_message());
 *   tessera_state_free(state);
 *   tessera_folder_free(folder);
 *
 * The functions do what the C++ library does (checkpoint/include, convert): that is where their
 * effects are described.
 *
 * Errors: a function that can fail returns a tessera_code; tessera_error_message() is then the
 * sentence that explains it. An argument that makes no sense (a null pointer, a negative number of
 * dims, a handle of another kind) is TESSERA_INVALID_ARGUMENT, as far as it can be told. Nothing is
 * changed by a call that fails, and its results are not set. No exception leaves the library.
 *
 * Handles are opaque. X_free(NULL) does nothing. A folder may be freed before what was made from
 * it. Reports are JSON texts in UTF-8, to be freed with tessera_text_free(): later versions add
 * members to their objects, and never take one away. Where a report is not wanted, its pointer may
 * be NULL.
 *
 * Threads: as in C++, several may call at once, but not with one state, group, saver or memory,
 * unless it says so.
 *
 * Compatibility: a program that was built with this header works with every later library of the
 * same TESSERA_ABI_VERSION. Structures carry their size, so that they can grow: set struct_bytes to
 * sizeof(the structure), and every member that is not used to zero. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TESSERA_ABI_VERSION 1
#define TESSERA_API __attribute__((visibility("default")))

/* ---- Versions and errors. */

/* TESSERA_ABI_VERSION of the library. */
TESSERA_API int32_t tessera_abi_version(void);

/* Never renumbered. */
typedef enum {
  TESSERA_OK = 0,
  TESSERA_CANCELLED = 1,
  TESSERA_UNKNOWN = 2,
  TESSERA_INVALID_ARGUMENT = 3, /* the request */
  TESSERA_DEADLINE_EXCEEDED = 4,
  TESSERA_NOT_FOUND = 5,
  TESSERA_ALREADY_EXISTS = 6,
  TESSERA_PERMISSION_DENIED = 7,
  TESSERA_RESOURCE_EXHAUSTED = 8,  /* memory, or space on the disk */
  TESSERA_FAILED_PRECONDITION = 9, /* saved and wanted state disagree */
  TESSERA_ABORTED = 10,
  TESSERA_OUT_OF_RANGE = 11,
  TESSERA_UNIMPLEMENTED = 12,
  TESSERA_INTERNAL = 13,
  TESSERA_UNAVAILABLE = 14,
  TESSERA_DATA_LOSS = 15, /* bad bytes, with file and offset */
  TESSERA_UNAUTHENTICATED = 16
} tessera_code;

/* The message of the last call of this thread that failed; "" before any. Valid until this thread's
 * next call fails. */
TESSERA_API const char* tessera_error_message(void);

/* In a callback that is about to return an error: its message. */
TESSERA_API void tessera_set_error_message(const char* message);

TESSERA_API void tessera_text_free(char* text);

/* ---- State: which tensors there are, and where this process has parts of them in memory. */

/* As in checkpoint/FORMAT.md. Never renumbered. */
typedef enum {
  TESSERA_F64 = 1,
  TESSERA_F32 = 2,
  TESSERA_F16 = 3,
  TESSERA_BF16 = 4,
  TESSERA_I64 = 5,
  TESSERA_I32 = 6,
  TESSERA_I16 = 7,
  TESSERA_I8 = 8,
  TESSERA_U8 = 9,
  TESSERA_BOOL = 10,
  TESSERA_U16 = 11,
  TESSERA_U32 = 12,
  TESSERA_U64 = 13,
  TESSERA_F8_E4M3 = 14,
  TESSERA_F8_E5M2 = 15
} tessera_dtype;

typedef enum {
  TESSERA_WEIGHT = 1,
  TESSERA_MASTER_WEIGHT = 2,
  TESSERA_OPTIMIZER_STATE = 3,
  TESSERA_BUFFER = 4
} tessera_role;

enum { TESSERA_MAX_DIMS = 32 };

typedef struct tessera_state tessera_state;

TESSERA_API int32_t tessera_state_create(tessera_state** state);
TESSERA_API void tessera_state_free(tessera_state* state);

/* A tensor, of this global shape, of which this process has no part yet. */
TESSERA_API int32_t tessera_state_add_tensor(tessera_state* state, const char* name, int32_t role,
                                             int32_t dtype, int32_t dims,
                                             const int64_t* global_shape);

/* A second name of a tensor that was added before. */
TESSERA_API int32_t tessera_state_add_alias(tessera_state* state, const char* name,
                                            const char* alias_of);

enum { TESSERA_READ_ONLY = 1 }; /* flags: a load into this memory is refused */

/* A box of the tensor that was added last, in this process's memory: as many offsets and extents as
 * the tensor has dims. `data` is the box's first element. `strides` are in elements, or NULL:
 * row-major and contiguous. `elements`: what the memory holds from `data` on, against which the box
 * is checked; -1: not known. The memory is the caller's until the state is freed. */
TESSERA_API int32_t tessera_state_add_shard(tessera_state* state, void* data, int64_t elements,
                                            const int64_t* offset, const int64_t* shape,
                                            const int64_t* strides, int32_t flags);

/* Elements [begin, end) of the row-major flattening of a box of that tensor, contiguous in memory,
 * as flattened parameters are cut. */
TESSERA_API int32_t tessera_state_add_flat_range(tessera_state* state, void* data,
                                                 const int64_t* offset, const int64_t* shape,
                                                 int64_t begin, int64_t end, int32_t flags);

/* One box of a shard and its place in host memory. */
typedef struct {
  void* handle; /* what tessera_state_add_device_shard() got */
  int32_t dims;
  const int64_t* offset; /* from the shard's first element */
  const int64_t* shape;
  void* host;         /* row-major and contiguous */
  int32_t host_dtype; /* a tessera_dtype: where it is not the shard's own, the device converts */
} tessera_box_copy;

/* The program's own memory on a device; see checkpoint/include/device_memory.h, which also says
 * what copies wait for and what may follow them. A callback returns a tessera_code, and sets
 * tessera_error_message() if that is not TESSERA_OK, which ends the save or load. Callbacks are
 * called by several threads of the library at once. */
typedef struct {
  size_t struct_bytes;
  void* context; /* handed to each callback */
  /* Starts copies, in one go: from the device to host memory, or the other way if `to_device` is
   * not 0. Only then may dtypes differ: from TESSERA_F32 to TESSERA_BF16 or TESSERA_F16, rounded to
   * nearest, ties to even, or the other way round. `copies` is valid during the call. `pending`
   * gets what the next two are called with. */
  int32_t (*start_copies)(void* context, const tessera_box_copy* copies, size_t count,
                          int32_t to_device, void** pending);
  /* Waits for the end of the copies. */
  int32_t (*wait)(void* context, void* pending);
  /* Called once for each start_copies() that returned TESSERA_OK, after wait() or instead of it:
   * when it returns, the host memory is not touched any more. */
  void (*release)(void* context, void* pending);
  /* Page-locked host memory, aligned to 4096 bytes. */
  int32_t (*allocate)(void* context, size_t bytes, void** memory);
  void (*free)(void* context, void* memory);
} tessera_device;

/* A box of the tensor that was added last, on a device, as tessera_state_add_shard() describes one
 * in memory. `handle` is what the device knows the shard by. `data` is its address on the device,
 * never dereferenced, but compared by tessera_saver_wait_copied(). `dtype`: of the shard; 0: the
 * tensor's. The structure is copied. Its context and callbacks must work until the calls that take
 * the state have returned, and until its savers and managers are freed, which keep memory that
 * allocate() returned from save to save. */
TESSERA_API int32_t tessera_state_add_device_shard(tessera_state* state,
                                                   const tessera_device* device, void* handle,
                                                   void* data, int64_t elements, int32_t dtype,
                                                   const int64_t* offset, const int64_t* shape,
                                                   const int64_t* strides, int32_t flags);

/* Set what a save stores beside the tensors: the program's own data, any bytes by name, and the
 * program's name, for people. In a group, rank 0's are stored. */
TESSERA_API int32_t tessera_state_set_entry(tessera_state* state, const char* name,
                                            const void* data, size_t bytes);
TESSERA_API int32_t tessera_state_set_program(tessera_state* state, const char* program);

typedef struct tessera_messages tessera_messages;

/* Adds a message to those that a callback returns. */
TESSERA_API int32_t tessera_messages_add(tessera_messages* messages, const void* data,
                                         size_t bytes);

/* Unites what the ranks of a group have as one entry: adds the bytes that are saved to `united`.
 * Called on rank 0, by the thread that saves, if a rank has other bytes than rank 0. `count` ranks,
 * rank 0 and those that differ from it, and what each has. Returns a tessera_code, and sets
 * tessera_error_message() if that is not TESSERA_OK, which ends the save. */
typedef int32_t (*tessera_unite)(void* context, size_t count, const int32_t* ranks,
                                 const void* const* entries, const size_t* bytes,
                                 tessera_messages* united);

/* Says how an entry is united, on every rank. The function and its context must live until the
 * saves of this state are over. */
TESSERA_API int32_t tessera_state_unite_entry(tessera_state* state, const char* name,
                                              tessera_unite unite, void* context);

/* ---- Ranks that save or load together. */

/* The program's own communication; see checkpoint/include/process_group.h. A callback returns a
 * tessera_code, and sets tessera_error_message() if that is not TESSERA_OK. Callbacks of one group
 * are called by one thread at a time, but not always by the same one. */
typedef struct {
  size_t struct_bytes;
  void* context; /* handed to each callback */
  int32_t rank;
  int32_t size;
  /* Collective: adds every rank's message, by rank, on rank 0, and none elsewhere. */
  int32_t (*gather)(void* context, const void* mine, size_t bytes, double timeout_seconds,
                    tessera_messages* all);
  /* Collective: adds rank 0's message, on every rank. */
  int32_t (*broadcast)(void* context, const void* from_rank_0, size_t bytes, double timeout_seconds,
                       tessera_messages* message);
  /* Start to move `bytes` bytes between this rank and another one. `pending` gets what the next two
   * are called with. */
  int32_t (*start_send)(void* context, const void* data, size_t bytes, int32_t destination,
                        void** pending);
  int32_t (*start_receive)(void* context, void* data, size_t bytes, int32_t source, void** pending);
  /* Waits for the end of a transfer. */
  int32_t (*wait)(void* context, void* pending, double timeout_seconds);
  /* Called once for each transfer that was started, after wait() or instead of it: when it returns,
   * the memory of the transfer is not touched any more. */
  void (*release)(void* context, void* pending);
} tessera_group;

/* ---- Options. All zero, but struct_bytes, are the defaults, as is NULL for the structure. */

/* Bytes done and in all; called by one thread at a time, which need not be the caller's. */
typedef void (*tessera_progress)(void* context, uint64_t done_bytes, uint64_t total_bytes);

typedef struct {
  size_t struct_bytes;
  const tessera_group* group; /* NULL: this process alone. Must outlive the call, or the saver */
  double timeout_seconds;     /* for each wait on other ranks; 0: 600 */
  uint32_t checksum_chunk_bytes;
  int32_t io_threads;
  uint64_t max_file_bytes;
  uint64_t staging_bytes;
  tessera_progress progress;
  void* progress_context;
  int32_t skip_when_busy;   /* of a saver: a save that begins while another runs is cancelled */
  const int32_t* cancelled; /* see tessera_load_options */
  int32_t overwrite;        /* replaces a checkpoint of the step; the same on all ranks */
} tessera_save_options;

typedef struct {
  size_t struct_bytes;
  const tessera_group* group;
  double timeout_seconds;
  int32_t allow_missing;    /* wanted, not saved: left as it is */
  int32_t allow_unexpected; /* saved, not wanted: left out */
  int32_t verify_digests;   /* of what was placed in memory, too */
  int32_t exact_dtypes;     /* refuses to convert between floating dtypes */
  int32_t io_threads;
  uint64_t staging_bytes;
  tessera_progress progress;
  void* progress_context;
  /* NULL, or a number that another thread may set: once it is not 0, the call ends soon, with the
   * code TESSERA_CANCELLED. Must outlive the call, or the saver. */
  const int32_t* cancelled;
} tessera_load_options;

/* ---- A folder of checkpoints. */

typedef struct tessera_folder tessera_folder;
typedef struct tessera_checkpoint tessera_checkpoint;

enum { TESSERA_CREATE = 1 }; /* flags: makes the folder if it is not there */

/* `name`: a directory, or a name of an object store such as "s3://bucket/prefix". `s3_endpoint`:
 * the address of an S3-compatible store; NULL or "": see docs/storage.md. */
TESSERA_API int32_t tessera_folder_open(const char* name, int32_t flags, const char* s3_endpoint,
                                        tessera_folder** folder);
TESSERA_API void tessera_folder_free(tessera_folder* folder);

/* Saves the checkpoint of a step; collective over the group. The report: {"directory",
 * "bytes_written", "copied_seconds", "blocked_seconds" (both of a saver), "seconds", "note"}. */
TESSERA_API int32_t tessera_save(tessera_folder* folder, int64_t step, const tessera_state* state,
                                 const tessera_save_options* options, char** report);

/* The committed checkpoints, ascending by step: [{"step", "directory"}, ...]. "error" says why it
 * is not known whether a checkpoint is committed. */
TESSERA_API int32_t tessera_list(tessera_folder* folder, char** report);

/* Deletes all but the `keep` checkpoints of the highest steps. */
TESSERA_API int32_t tessera_prune(tessera_folder* folder, int32_t keep);
/* As tessera_prune(), after a save: the checkpoint of `saved_step` stays, whatever its step. */
TESSERA_API int32_t tessera_prune_after_save(tessera_folder* folder, int32_t keep,
                                             int64_t saved_step);

/* ---- A checkpoint. */

/* Open the newest checkpoint of a folder, the one of a step, or one by its name; the name of a
 * folder means its newest checkpoint. */
TESSERA_API int32_t tessera_open_latest(tessera_folder* folder, tessera_checkpoint** checkpoint);
TESSERA_API int32_t tessera_open_step(tessera_folder* folder, int64_t step,
                                      tessera_checkpoint** checkpoint);
TESSERA_API int32_t tessera_open(const char* name, const char* s3_endpoint,
                                 tessera_checkpoint** checkpoint);
/* Opens a checkpoint of any format that docs/convert.md names, this library's included, by the name
 * of a folder or a file. `format`: NULL or "": found out. */
TESSERA_API int32_t tessera_open_foreign(const char* name, const char* format,
                                         const char* s3_endpoint, tessera_checkpoint** checkpoint);
TESSERA_API void tessera_checkpoint_free(tessera_checkpoint* checkpoint);

/* {"step", "directory", "program", "format", "entries": [names], "notes": [sentences], "values":
 * {name: value}, "tensors": [{"name", "role", "dtype", "shape", "alias_of", "foreign_name"}, ...]}.
 * Roles and dtypes are the numbers above; notes and values are of other frameworks' checkpoints.
 * "foreign_name" is the framework's name for the tensor's parameter, if the files have it. */
TESSERA_API int32_t tessera_describe(const tessera_checkpoint* checkpoint, char** report);

/* An entry that tessera_state_set_entry() has set: the bytes are the checkpoint's, until it is
 * freed. */
TESSERA_API int32_t tessera_entry(const tessera_checkpoint* checkpoint, const char* name,
                                  const void** data, size_t* bytes);

/* Loads into the memory of the state, under whatever sharding it has; collective over the group.
 * The report: {"missing", "unexpected", "from_master": [names], "bytes_read", "bytes_needed",
 * "seconds", "digests_verified"}. */
TESSERA_API int32_t tessera_load(const tessera_checkpoint* checkpoint, const tessera_state* state,
                                 const tessera_load_options* options, char** report);

/* Reads a tensor, or a box of it, into `data`, as tessera_state_add_shard() describes memory.
 * `offset` and `shape`: both NULL for the whole tensor, of as many dims as it has. */
TESSERA_API int32_t tessera_read_tensor(const tessera_checkpoint* checkpoint, const char* name,
                                        int32_t dtype, int32_t dims, const int64_t* offset,
                                        const int64_t* shape, const int64_t* strides, void* data,
                                        int64_t elements);

/* ---- Saves in the background; see checkpoint/include/async_saver.h. */

typedef struct tessera_saver tessera_saver;

/* The folder stays open while the saver lives. */
TESSERA_API int32_t tessera_saver_create(tessera_folder* folder,
                                         const tessera_save_options* options,
                                         tessera_saver** saver);
/* Waits for saves in flight. */
TESSERA_API void tessera_saver_free(tessera_saver* saver);

/* Begins a save. The state may be freed at once, but the memory that it describes must not change
 * before tessera_saver_wait_copied(). That returns for a device shard once its copy is started. */
TESSERA_API int32_t tessera_saver_start(tessera_saver* saver, int64_t step,
                                        const tessera_state* state);
/* In place of tessera_saver_start(), where this process has no state to save: the save fails on
 * every rank, with this error. */
TESSERA_API int32_t tessera_saver_refuse(tessera_saver* saver, int64_t step, int32_t code,
                                         const char* message);
/* Returns once these bytes, or all memory where `data` is NULL, may be overwritten. Several threads
 * may call it. */
TESSERA_API int32_t tessera_saver_wait_copied(tessera_saver* saver, const void* data, size_t bytes);
/* The saves that have finished and were not reported before: [{"step", "directory", ...}, or
 * {"step", "code", "error"}, ...]. With `wait`, waits for those in flight. */
TESSERA_API int32_t tessera_saver_poll(tessera_saver* saver, int32_t wait, char** report);

/* ---- The checkpoints of a job: when it saves, what it keeps, where it resumes; see
 * checkpoint/include/checkpoint_manager.h. */

typedef struct tessera_manager tessera_manager;

typedef struct {
  size_t struct_bytes;
  const char* s3_endpoint;
  const tessera_save_options* save; /* the group and the files; NULL: the defaults */
  const tessera_save_options*
      background; /* NULL: saves in the foreground; its group: another one */
  /* When the job saves and ends, each 0: not for this reason. A job that ends saves before. */
  int64_t last_step;
  int64_t interval_steps;
  int64_t rolling_interval_steps;
  double interval_seconds;
  double exit_after_seconds;
  const char* stop_file_path; /* on one rank; NULL: none */
  /* What stays, of permanent checkpoints: all, where each is 0. */
  int64_t keep_newest;
  int64_t keep_every_steps;
  int32_t never_saves;      /* a job that only loads: nothing is created, locked or renamed */
  double lock_wait_seconds; /* for another job to give the folder back; 0: 10 */
  /* Saves in the background go through a staging folder of this machine. Not with a NULL
   * `background`. */
  int32_t async_upload;
  const char* async_upload_tmp_folder; /* NULL: in memory */
} tessera_manager_options;

/* Opens the folder, creates it where it is not there, and locks it; collective over the group, as
 * are the next two. */
TESSERA_API int32_t tessera_manager_open(const char* name, const tessera_manager_options* options,
                                         tessera_manager** manager);
/* Waits for saves in flight. */
TESSERA_API void tessera_manager_free(tessera_manager* manager);

/* Loads the newest valid checkpoint into the memory of the state. The report: {"step", "directory",
 * "skipped": [sentences]}; without one, the first two are null and the state is as it was. */
TESSERA_API int32_t tessera_manager_resume(tessera_manager* manager, const tessera_state* state,
                                           char** report);

/* Loads the checkpoint that is offered, on this rank, for a program that loads by itself: as
 * LoadOnThisRank in checkpoint_manager.h. The checkpoint is freed when the callback returns.
 * Returns a tessera_code, and sets tessera_error_message() if that is not TESSERA_OK: the code and
 * the message of a function of this library mean what they meant there. */
typedef int32_t (*tessera_load_checkpoint)(void* context, tessera_checkpoint* checkpoint);

/* Offers the checkpoints of the folder, newest first, until the callback succeeds, with one that is
 * not damaged on any rank. With `begin_anew`, checkpoints of which none is valid are as none. The
 * report is that of tessera_manager_resume(). */
TESSERA_API int32_t tessera_manager_resume_by(tessera_manager* manager,
                                              tessera_load_checkpoint load, void* context,
                                              int32_t begin_anew, char** report);

/* Begins the job's steps after `step`, and its time, for a job that has loaded its state from
 * elsewhere than tessera_manager_resume(): a stop file's request of an earlier step then ends no
 * job. `last_step` replaces that of the options, unless it is negative. */
TESSERA_API int32_t tessera_manager_begin(tessera_manager* manager, int64_t step,
                                          int64_t last_step);
/* Renames the checkpoints of later steps than `step` so that no reader takes them for checkpoints;
 * collective. A job that begins among later ones is otherwise refused at its first step:
 * TESSERA_FAILED_PRECONDITION. The report: ["step-00000500.abandoned", ...] on rank 0, [] on other
 * ranks. */
TESSERA_API int32_t tessera_manager_abandon_later(tessera_manager* manager, int64_t step,
                                                  char** report);

/* Call after each step: saves if it is time. What one rank says counts for all: `stop_signal` (0:
 * none) ends the job; in a step that is not `healthy` nothing is saved for the time being. The
 * report: {"save": "permanent", "rolling" or null, "end": why the job ends, or null, "outcomes": as
 * of tessera_saver_poll()}. */
TESSERA_API int32_t tessera_manager_save(tessera_manager* manager, int64_t step,
                                         int32_t stop_signal, int32_t healthy,
                                         const tessera_state* state, char** report);

/* As tessera_manager_save(), for a program whose state takes time to describe: the callback does so
 * if the step is saved. The state that it gives is not freed before tessera_manager_wait_copied().
 * Returns the same tessera_code on all ranks, and sets tessera_error_message() if that is not
 * TESSERA_OK. */
typedef int32_t (*tessera_describe_state)(void* context, const tessera_state** state);
TESSERA_API int32_t tessera_manager_save_by(tessera_manager* manager, int64_t step,
                                            int32_t stop_signal, int32_t healthy,
                                            tessera_describe_state describe, void* context,
                                            char** report);

/* As tessera_saver_poll(). */
TESSERA_API int32_t tessera_manager_poll(tessera_manager* manager, int32_t wait, char** report);

/* As tessera_saver_wait_copied(). */
TESSERA_API int32_t tessera_manager_wait_copied(tessera_manager* manager, const void* data,
                                                size_t bytes);

/* ---- Checkpoints of any format, by their names. */

typedef struct {
  size_t struct_bytes;
  const char* s3_endpoint;
  const char* format; /* of what is read, where it is another framework's; NULL: found out */
  int32_t threads;
  tessera_progress progress;
  void* progress_context;
  const int32_t* cancelled; /* see tessera_load_options; of tessera_verify() */
  /* JSON: the names of parameters by the names of tensors in the optimizer's files, for PaddleNLP's
   * where they do not tell; NULL: none. */
  const char* parameter_names_file;
} tessera_read_options;

/* As tessera_open_foreign(). */
TESSERA_API int32_t tessera_open_named(const char* name, const tessera_read_options* options,
                                       tessera_checkpoint** checkpoint);

/* Reads every byte of a checkpoint. Damage is no error of the call, but in the report: {"good",
 * "damage": [{"file", "offset", "tensor", "message"}, ...], "bytes_read", ...}. `digests`: compares
 * the contents of the tensors, too. */
TESSERA_API int32_t tessera_verify(const char* name, int32_t digests,
                                   const tessera_read_options* options, char** report);

/* Compares the contents of two checkpoints, whatever their shardings: {"same_state",
 * "equal_tensors", "tensors": [{"tensor", "message"}, ...], "metadata", "notes", ...}. `data`:
 * reads every element. */
TESSERA_API int32_t tessera_diff(const char* a, const char* b, int32_t data,
                                 const tessera_read_options* options, char** report);

typedef struct {
  size_t struct_bytes;
  const char* topology;    /* "dp2_tp2", of TESSERA's own format; NULL: "single" */
  int32_t dtype;           /* of the weights, in other formats; 0: as saved */
  int32_t weights_only;    /* in other formats */
  uint64_t max_file_bytes; /* in other formats; 0: 5e9 */
  const char* tokenizer;   /* the model's, a file or folder: written into "hf" and "gguf" */
} tessera_write_options;

/* Writes a checkpoint, of any format, in another one: "tessera", or one that docs/convert.md names
 * as written. The report: {"bytes", "seconds", "digests_compared", "notes", ...}. */
TESSERA_API int32_t tessera_convert(const char* source, const char* destination, const char* format,
                                    const tessera_read_options* options,
                                    const tessera_write_options* write_options, char** report);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_CHECKPOINT_C_TESSERA_CHECKPOINT_H_
