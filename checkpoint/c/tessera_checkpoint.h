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
 *   if (tessera_folder_save(folder, 100, state, NULL, NULL) != TESSERA_OK) {
 *     puts(tessera_error_message());
 *   }
 *   tessera_state_free(state);
 *   tessera_folder_free(folder);
 *
 * The functions do what the C++ library does. Its headers (checkpoint/include) describe the effects
 * in full; this one describes the arguments. C++ has more: what is not here cannot be set from C.
 *
 * Errors: a function that can fail returns a tessera_code, as an int32_t, so that the ABI does not
 * depend on the size of an enum. After an error, tessera_error_message() returns a sentence that
 * explains it. Arguments that make no sense, such as a null pointer, a negative number of dims or a
 * handle of another kind, are TESSERA_INVALID_ARGUMENT, and nothing is changed. After another error
 * of a load, a part of the memory may be new; after that of a save, the checkpoint may exist
 * (checkpoint/include/checkpoint.h). The results count only after TESSERA_OK. No exception leaves
 * the library.
 *
 * Handles are opaque. Free each with the function of its kind; freeing NULL does nothing. A folder
 * may be freed before the checkpoints and savers that were made from it.
 *
 * Reports are JSON texts in UTF-8. Free them with tessera_text_free(), or pass NULL to get none.
 * Later versions add members to their objects, and never remove one.
 *
 * Threads: several threads may call at once, but not with one state, group, saver or memory, except
 * where a function allows it.
 *
 * Compatibility: a program that was built with this header works with every later library of the
 * same TESSERA_ABI_VERSION. Structures carry their size, so that they can grow: set struct_bytes to
 * the size of the structure, and every member that is not used to zero. tessera_box_copy has none,
 * since it never grows. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TESSERA_ABI_VERSION 1
#define TESSERA_API __attribute__((visibility("default")))

/* ---- Versions and errors. */

/* Returns the TESSERA_ABI_VERSION of the library. */
TESSERA_API int32_t tessera_abi_version(void);

/* Never renumbered. */
typedef enum {
  TESSERA_OK = 0,
  TESSERA_CANCELLED = 1,
  TESSERA_UNKNOWN = 2,
  TESSERA_INVALID_ARGUMENT = 3, /* the request is wrong */
  TESSERA_DEADLINE_EXCEEDED = 4,
  TESSERA_NOT_FOUND = 5,
  TESSERA_ALREADY_EXISTS = 6,
  TESSERA_PERMISSION_DENIED = 7,
  TESSERA_RESOURCE_EXHAUSTED = 8,  /* too little memory, or space on the disk */
  TESSERA_FAILED_PRECONDITION = 9, /* saved and wanted state disagree */
  TESSERA_ABORTED = 10,
  TESSERA_OUT_OF_RANGE = 11,
  TESSERA_UNIMPLEMENTED = 12,
  TESSERA_INTERNAL = 13,
  TESSERA_UNAVAILABLE = 14,
  TESSERA_DATA_LOSS = 15, /* bad bytes, with file and offset */
  TESSERA_UNAUTHENTICATED = 16
} tessera_code;

/* Returns the message of the last call of this thread that failed; "" if none has. The text is
 * valid until the next call of this thread fails. */
TESSERA_API const char* tessera_error_message(void);

/* Sets the message of the error that a callback is about to return. */
TESSERA_API void tessera_set_error_message(const char* message);

/* Frees a report. */
TESSERA_API void tessera_text_free(char* text);

/* ---- State: the tensors of a model, and the parts of them that this process has in memory.
 * Tensors are added one after the other, each followed by its parts. */

/* The numbers are those of checkpoint/FORMAT.md. Never renumbered. */
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

/* Adds a tensor, without any part of it. `role` is a tessera_role, `dtype` a tessera_dtype, and
 * `global_shape` the shape of the whole tensor on all ranks. */
TESSERA_API int32_t tessera_state_add_tensor(tessera_state* state, const char* name, int32_t role,
                                             int32_t dtype, int32_t dims,
                                             const int64_t* global_shape);

/* Adds a second name of a tensor that was added before. */
TESSERA_API int32_t tessera_state_add_alias(tessera_state* state, const char* name,
                                            const char* alias_of);

/* A flag of a part: a load into its memory is refused. */
enum { TESSERA_READ_ONLY = 1 };

/* Adds a part of the tensor that was added last: a box of it, at `offset` and of `shape`, in this
 * process's memory. Both have one number for each dim of the tensor.
 *
 *   data      the first element of the box
 *   elements  the number of elements that the memory holds from `data` on, against which the box is
 *             checked; -1: unknown
 *   strides   in elements, one for each dim; NULL: contiguous and row-major
 *   flags     0 or TESSERA_READ_ONLY
 *
 * Elements that several ranks hold must be equal: one rank's copy is saved, and nothing compares it
 * with the others. The memory belongs to the caller, and must stay valid until the state is freed.
 */
TESSERA_API int32_t tessera_state_add_shard(tessera_state* state, void* data, int64_t elements,
                                            const int64_t* offset, const int64_t* shape,
                                            const int64_t* strides, int32_t flags);

/* Adds elements [begin, end) of a box of that tensor, counted in row-major order and contiguous in
 * memory, as frameworks have them that cut flattened parameters. */
TESSERA_API int32_t tessera_state_add_flat_range(tessera_state* state, void* data,
                                                 const int64_t* offset, const int64_t* shape,
                                                 int64_t begin, int64_t end, int32_t flags);

/* One box of a shard and its place in host memory. */
typedef struct {
  void* handle; /* of tessera_state_add_device_shard() */
  int32_t dims;
  const int64_t* offset; /* from the shard's first element */
  const int64_t* shape;
  void* host;         /* row-major and contiguous */
  int32_t host_dtype; /* a tessera_dtype; if it is not the shard's, the device converts */
} tessera_box_copy;

/* Memory on a device, which the program's own callbacks copy. checkpoint/include/device_memory.h
 * says what copies wait for, and what may follow them.
 *
 * A callback returns a tessera_code. If it is not TESSERA_OK, the callback has set the message by
 * tessera_set_error_message(), and the save or load ends. Several threads of the library call
 * callbacks at once. */
typedef struct {
  size_t struct_bytes;
  void* context; /* handed to each callback */
  /* Starts `count` copies at once: from the device to host memory or, if `to_device` is not 0, to
   * the device. Only copies to the device convert: from TESSERA_F32 to TESSERA_BF16 or TESSERA_F16,
   * rounded to nearest, ties to even, or from one of these to TESSERA_F32. `copies` is valid during
   * the call. Sets `pending`, with which wait() and release() are called. */
  int32_t (*start_copies)(void* context, const tessera_box_copy* copies, size_t count,
                          int32_t to_device, void** pending);
  /* Waits for the end of the copies. */
  int32_t (*wait)(void* context, void* pending);
  /* Called once for each start_copies() that has returned TESSERA_OK, after wait() or instead of
   * it. When it returns, nothing touches the host memory any more. */
  void (*release)(void* context, void* pending);
  /* Allocates page-locked host memory, aligned to 4096 bytes, and frees it. */
  int32_t (*allocate)(void* context, size_t bytes, void** memory);
  void (*free)(void* context, void* memory);
} tessera_device;

/* Adds a part of the tensor that was added last, on a device. The arguments are those of
 * tessera_state_add_shard(), except:
 *
 *   device  is copied. Its context and callbacks must work until the calls that take the state have
 *           returned, and until its savers and managers are freed, which keep memory of allocate()
 *           from save to save
 *   handle  by which the device knows the part
 *   data    the address on the device, which is never dereferenced, but compared by
 *           tessera_saver_wait_copied(). Loads do not compare it, so they do not find parts that
 *           share memory of a device
 *   dtype   of the part; 0: the tensor's */
TESSERA_API int32_t tessera_state_add_device_shard(tessera_state* state,
                                                   const tessera_device* device, void* handle,
                                                   void* data, int64_t elements, int32_t dtype,
                                                   const int64_t* offset, const int64_t* shape,
                                                   const int64_t* strides, int32_t flags);

/* Set what a save stores beside the tensors: the program's own data, as any bytes under a name, and
 * the name of the program, for people. In a group, those of rank 0 are stored. */
TESSERA_API int32_t tessera_state_set_entry(tessera_state* state, const char* name,
                                            const void* data, size_t bytes);
TESSERA_API int32_t tessera_state_set_program(tessera_state* state, const char* program);

typedef struct tessera_messages tessera_messages;

/* Adds a message to the ones that a callback returns. */
TESSERA_API int32_t tessera_messages_add(tessera_messages* messages, const void* data,
                                         size_t bytes);

/* Merges the ranks' bytes of one entry: adds the bytes to save to `merged`. Called on rank 0, by
 * the saving thread, if another rank's bytes differ from rank 0's. `ranks`, `entries` and `bytes`
 * have `count` elements each: rank 0, and the ranks that differ from it. Returns a tessera_code;
 * any but TESSERA_OK, for which the callback has set the message, ends the save. */
typedef int32_t (*tessera_merge)(void* context, size_t count, const int32_t* ranks,
                                 const void* const* entries, const size_t* bytes,
                                 tessera_messages* merged);

/* Sets the function that merges an entry. Call on every rank. The function and its context must
 * live until the saves of this state are over. */
TESSERA_API int32_t tessera_state_merge_entry(tessera_state* state, const char* name,
                                              tessera_merge merge, void* context);

/* ---- Ranks that save or load together. */

/* Why ranks cannot save or load together any more. All zero at first. The program keeps one for
 * each communicator, as long as that exists. */
typedef struct {
  int32_t code;      /* a tessera_code; TESSERA_OK: they can */
  char message[508]; /* ends with a zero */
} tessera_abandoned;

/* The ranks of a job, over the program's own communication; see checkpoint/include/process_group.h.
 *
 * A callback returns a tessera_code. If it is not TESSERA_OK, the callback has set the message by
 * tessera_set_error_message(). The library calls the callbacks of one group from one thread at a
 * time, but not always from the same one. */
typedef struct {
  size_t struct_bytes;
  void* context; /* handed to each callback */
  int32_t rank;
  int32_t size;
  /* Collective. On rank 0, adds the messages of all ranks to `all`, in the order of the ranks;
   * elsewhere, adds nothing. */
  int32_t (*gather)(void* context, const void* mine, size_t bytes, double timeout_seconds,
                    tessera_messages* all);
  /* Collective. Adds rank 0's message to `message`, on every rank. */
  int32_t (*broadcast)(void* context, const void* from_rank_0, size_t bytes, double timeout_seconds,
                       tessera_messages* message);
  /* Start to move `bytes` bytes between this rank and another one. Set `pending`, with which wait()
   * and release() are called. The bytes move whether or not their own wait() has been called: two
   * ranks that send to each other may both wait for what they receive first. */
  int32_t (*start_send)(void* context, const void* data, size_t bytes, int32_t destination,
                        void** pending);
  int32_t (*start_receive)(void* context, void* data, size_t bytes, int32_t source, void** pending);
  /* Waits for the end of a transfer. */
  int32_t (*wait)(void* context, void* pending, double timeout_seconds);
  /* Called once for each transfer that was started, after wait() or instead of it. When it returns,
   * nothing touches the memory of the transfer any more. */
  void (*release)(void* context, void* pending);
  /* After an error of a callback, or if this rank leaves a collective call for lack of memory,
   * ranks may be at different operations. The library then writes the error here, and every later
   * call with it fails at once, with that error. NULL: it is forgotten after each call. */
  tessera_abandoned* abandoned;
} tessera_group;

/* ---- Options. A member that is zero has its default, and so has every member if the structure is
 * NULL. struct_bytes is always set. */

/* Called with the bytes done so far and in total, by one thread at a time, which need not be the
 * caller's. */
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
  int32_t skip_when_busy;   /* in a saver: a save that begins while another runs is cancelled */
  const int32_t* cancelled; /* see tessera_load_options */
  int32_t overwrite;        /* replace a checkpoint of the step; the same on all ranks */
} tessera_save_options;

typedef struct {
  size_t struct_bytes;
  const tessera_group* group;
  double timeout_seconds;
  int32_t allow_missing;    /* leave wanted tensors unchanged that were not saved */
  int32_t allow_unexpected; /* ignore saved tensors that no rank wants */
  int32_t verify_digests;   /* also compare what was placed in memory with the saved digests */
  int32_t exact_dtypes;     /* refuse to convert between floating dtypes */
  int32_t io_threads;
  uint64_t staging_bytes;
  tessera_progress progress;
  void* progress_context;
  /* A number that another thread may set; NULL: none. Once it is not 0, the call soon returns
   * TESSERA_CANCELLED. Must outlive the call, or the saver. */
  const int32_t* cancelled;
  /* Make finite elements that the wanted dtype cannot hold infinite; 0: they are an error. */
  int32_t allow_overflow;
  /* Load also where tensors share host memory for which the checkpoint may have different
   * elements. */
  int32_t allow_shared_memory;
} tessera_load_options;

/* ---- A folder of checkpoints. */

typedef struct tessera_folder tessera_folder;
typedef struct tessera_checkpoint tessera_checkpoint;

/* A flag of tessera_folder_open(): creates the folder if it is missing. */
enum { TESSERA_CREATE = 1 };

/* Opens a folder. `name` is the path of a directory, or a name such as "s3://bucket/prefix".
 * `s3_endpoint` is the address of an S3-compatible store; NULL or "": see docs/storage.md. */
TESSERA_API int32_t tessera_folder_open(const char* name, int32_t flags, const char* s3_endpoint,
                                        tessera_folder** folder);
TESSERA_API void tessera_folder_free(tessera_folder* folder);

/* Saves the checkpoint of a step. Collective over the group of the options.
 *
 * Report: {"directory", "bytes_written", "seconds", "copied_seconds", "blocked_seconds", "note"}. A
 * saver alone sets copied_seconds and blocked_seconds. */
TESSERA_API int32_t tessera_folder_save(tessera_folder* folder, int64_t step,
                                        const tessera_state* state,
                                        const tessera_save_options* options, char** report);

/* Lists the committed checkpoints, ascending by step.
 *
 * Report: [{"step", "directory"}, ...]. If it is not known whether a checkpoint is committed,
 * "error" says why. */
TESSERA_API int32_t tessera_folder_list(tessera_folder* folder, char** report);

/* Deletes all but the `keep` checkpoints of the highest steps, among which damaged ones do not
 * count, and the newest one that does not say that the run had diverged. After a save, `saved_step`
 * is its step, whose checkpoint stays in any case; otherwise -1. */
TESSERA_API int32_t tessera_folder_prune(tessera_folder* folder, int32_t keep, int64_t saved_step);

/* ---- A checkpoint. */

/* Open the newest checkpoint of a folder, the checkpoint of a step, or a checkpoint by its name.
 * The name of a folder of checkpoints stands for its newest one. The newest is that of a run that
 * had not diverged, unless the folder has no others: tessera_checkpoint_describe() has notes about
 * those that were skipped. */
TESSERA_API int32_t tessera_folder_open_latest(tessera_folder* folder,
                                               tessera_checkpoint** checkpoint);
TESSERA_API int32_t tessera_folder_open_step(tessera_folder* folder, int64_t step,
                                             tessera_checkpoint** checkpoint);
TESSERA_API int32_t tessera_checkpoint_open(const char* name, const char* s3_endpoint,
                                            tessera_checkpoint** checkpoint);
TESSERA_API void tessera_checkpoint_free(tessera_checkpoint* checkpoint);

/* Sets `step` to the step of a checkpoint. */
TESSERA_API int32_t tessera_checkpoint_step(const tessera_checkpoint* checkpoint, int64_t* step);

/* Describes a checkpoint.
 *
 * Report: {"step", "directory", "program", "format", "entries": [names], "notes": [sentences],
 * "values": {name: value}, "masters": {weight: master weight}, "tensors": [{"name", "role",
 * "dtype", "shape", "alias_of", "foreign_name"}, ...]}. Roles and dtypes are the numbers above.
 * Notes say which checkpoints of a folder were skipped, and what was not understood of another
 * framework's. Other frameworks' checkpoints have values, and "foreign_name", the framework's name
 * for the tensor's parameter, if the files have it. */
TESSERA_API int32_t tessera_checkpoint_describe(const tessera_checkpoint* checkpoint,
                                                char** report);

/* Finds the bytes that tessera_state_set_entry() has set. They belong to the checkpoint, and are
 * valid until it is freed. */
TESSERA_API int32_t tessera_checkpoint_entry(const tessera_checkpoint* checkpoint, const char* name,
                                             const void** data, size_t* bytes);

/* Loads into the memory of the state, whatever the sharding of either is. Collective over the group
 * of the options.
 *
 * Report: {"missing", "unexpected", "from_master": [names], "bytes_read", "bytes_needed",
 * "seconds", "digests_verified"}. */
TESSERA_API int32_t tessera_checkpoint_load(const tessera_checkpoint* checkpoint,
                                            const tessera_state* state,
                                            const tessera_load_options* options, char** report);

/* Reads a tensor, or a box of it, into memory that `data`, `elements` and `strides` describe as in
 * tessera_state_add_shard(). `dtype` is that of the memory. `offset` and `shape` have `dims`
 * numbers, one for each dim of the tensor; both NULL: the whole tensor. Reads in this process
 * alone: a group of the options is not used. */
TESSERA_API int32_t tessera_checkpoint_read_tensor(const tessera_checkpoint* checkpoint,
                                                   const char* name, int32_t dtype, int32_t dims,
                                                   const int64_t* offset, const int64_t* shape,
                                                   const int64_t* strides, void* data,
                                                   int64_t elements,
                                                   const tessera_load_options* options);

/* ---- Saves in the background; see checkpoint/include/async_saver.h. */

typedef struct tessera_saver tessera_saver;

/* Makes a saver, for which the folder stays open. */
TESSERA_API int32_t tessera_saver_create(tessera_folder* folder,
                                         const tessera_save_options* options,
                                         tessera_saver** saver);
/* Waits for saves in flight. */
TESSERA_API void tessera_saver_free(tessera_saver* saver);

/* Begins a save and returns at once. The state may be freed then. The memory that it describes must
 * not change until tessera_saver_wait_copied() has returned for it, which for a part on a device is
 * when its copy is started. */
TESSERA_API int32_t tessera_saver_start(tessera_saver* saver, int64_t step,
                                        const tessera_state* state);
/* Replaces tessera_saver_start() if this process has no state to save: the save fails on every
 * rank, with this error. */
TESSERA_API int32_t tessera_saver_refuse(tessera_saver* saver, int64_t step, int32_t code,
                                         const char* message);
/* Waits until `bytes` bytes from `data` on may be overwritten; NULL: all memory of the state.
 * Several threads may call it at once. */
TESSERA_API int32_t tessera_saver_wait_copied(tessera_saver* saver, const void* data, size_t bytes);
/* Reports the saves that have finished since the last call. If `wait` is not 0, waits for those in
 * flight first.
 *
 * Report: [outcome, ...], where an outcome is the report of tessera_folder_save() with "step", or
 * {"step", "code", "error"}. */
TESSERA_API int32_t tessera_saver_poll(tessera_saver* saver, int32_t wait, char** report);

/* ---- The checkpoints of a job: when it saves, which it keeps, where it resumes; see
 * checkpoint/include/checkpoint_manager.h. Collective: every rank of the group makes the same
 * calls in the same order, apart from those that poll or wait. */

typedef struct tessera_manager tessera_manager;

typedef struct {
  size_t struct_bytes;
  const char* s3_endpoint;
  const tessera_save_options* save; /* the group and the files; NULL: the defaults */
  /* Saves in the background, by another group of the same ranks; NULL: in the foreground. */
  const tessera_save_options* background;
  /* When the job saves and when it ends; a job that ends saves before. 0: not for this reason. */
  int64_t last_step;
  int64_t interval_steps;
  int64_t rolling_interval_steps;
  double interval_seconds;
  double exit_after_seconds;
  const char* stop_file_path; /* on one rank; NULL: none */
  /* Which permanent checkpoints stay. If these and keep_within_seconds are 0, all do. */
  int64_t keep_newest;
  int64_t keep_every_steps;
  int32_t never_saves;      /* a job that only loads: nothing is created, locked or renamed */
  double lock_wait_seconds; /* for another job to leave the folder; 0: 10 */
  /* Whether saves in the background go through a staging folder of this machine. */
  int32_t async_upload;
  const char* async_upload_tmp_folder; /* where it is made; NULL: in memory */
  double keep_within_seconds;          /* permanent checkpoints that are not older stay */
} tessera_manager_options;

/* Opens the folder, creates it if it is missing, and locks it. */
TESSERA_API int32_t tessera_manager_open(const char* name, const tessera_manager_options* options,
                                         tessera_manager** manager);
/* Waits for saves in flight. */
TESSERA_API void tessera_manager_free(tessera_manager* manager);

/* Loads the newest valid checkpoint into the memory of the state, and sets `step` to its step.
 * Without one, the state is unchanged and `step` is -1. `step` may be NULL.
 *
 * Report: {"step", "directory", "skipped": [sentences]}. Without a checkpoint, "step" and
 * "directory" are null. */
TESSERA_API int32_t tessera_manager_resume(tessera_manager* manager, const tessera_state* state,
                                           int64_t* step, char** report);

/* Loads a checkpoint on this rank, for a program that loads by itself; see LoadOnThisRank in
 * checkpoint_manager.h. The library frees the checkpoint when the callback returns. Returns a
 * tessera_code; after any but TESSERA_OK, the callback has set the message. The error of a function
 * of this library may be returned as it is. */
typedef int32_t (*tessera_load_checkpoint)(void* context, tessera_checkpoint* checkpoint);

/* Calls `load` with the checkpoints of the folder, newest first, until it succeeds on all ranks. If
 * `begin_anew` is not 0 and no checkpoint is valid, the job begins without one. Sets `step` as
 * tessera_manager_resume() does.
 *
 * Report: that of tessera_manager_resume(). */
TESSERA_API int32_t tessera_manager_resume_by(tessera_manager* manager,
                                              tessera_load_checkpoint load, void* context,
                                              int32_t begin_anew, int64_t* step, char** report);

/* Begins the job's steps after `step`, and its time, for a job that has loaded its state from
 * elsewhere. Requests of a stop file for earlier steps then end nothing. `last_step` replaces the
 * option; negative: the option stays. */
TESSERA_API int32_t tessera_manager_begin(tessera_manager* manager, int64_t step,
                                          int64_t last_step);
/* Renames the checkpoints of later steps than `step`, so that no reader takes them for checkpoints.
 * Otherwise, a job that begins among later ones gets TESSERA_FAILED_PRECONDITION from its first
 * tessera_manager_save().
 *
 * Report: ["step-00000500.abandoned", ...] on rank 0, [] on other ranks. */
TESSERA_API int32_t tessera_manager_abandon_later(tessera_manager* manager, int64_t step,
                                                  char** report);

/* Never renumbered. */
typedef enum {
  TESSERA_SAVE_NONE = 0,
  TESSERA_SAVE_ROLLING = 1,
  TESSERA_SAVE_PERMANENT = 2
} tessera_save_kind;

typedef enum {
  TESSERA_END_NONE = 0, /* the job goes on */
  TESSERA_END_LAST_STEP = 1,
  TESSERA_END_SIGNAL = 2,
  TESSERA_END_PROGRAM = 3, /* not in jobs of C programs alone */
  TESSERA_END_STOP_FILE = 4,
  TESSERA_END_DURATION = 5,
  TESSERA_END_INTERVAL = 6 /* not in jobs of C programs alone */
} tessera_end_reason;

/* What all ranks do after a step. The caller sets struct_bytes. */
typedef struct {
  size_t struct_bytes;
  int32_t save; /* a tessera_save_kind */
  int32_t end;  /* a tessera_end_reason */
} tessera_decision;

/* Saves if the options say so for this step. Call after each step, on all ranks. A `stop_signal` on
 * any rank (0: none) ends the job. Saves that are due wait for a step that is `healthy` on all
 * ranks. A save at the end of the job does not wait, but no restart resumes from it. Sets
 * `decision`, which may be NULL. In the background, only its outcome tells whether a save has
 * succeeded, the last one included. Without a report, outcomes stay for tessera_manager_poll().
 *
 * Report: {"save": "permanent", "rolling" or null, "end": why the job ends or null, "outcomes":
 * those of tessera_saver_poll()}. */
TESSERA_API int32_t tessera_manager_save(tessera_manager* manager, int64_t step,
                                         int32_t stop_signal, int32_t healthy,
                                         const tessera_state* state, tessera_decision* decision,
                                         char** report);

/* Describes the state of a step that is saved. The state must not be freed before
 * tessera_manager_wait_copied() has returned. Returns the same tessera_code on all ranks; after any
 * but TESSERA_OK, the callback has set the message. */
typedef int32_t (*tessera_describe_state)(void* context, const tessera_state** state);
/* Does what tessera_manager_save() does, for a program whose state takes time to describe: calls
 * `describe` only if the step is saved. */
TESSERA_API int32_t tessera_manager_save_by(tessera_manager* manager, int64_t step,
                                            int32_t stop_signal, int32_t healthy,
                                            tessera_describe_state describe, void* context,
                                            tessera_decision* decision, char** report);

/* Does what tessera_saver_poll() does. */
TESSERA_API int32_t tessera_manager_poll(tessera_manager* manager, int32_t wait, char** report);

/* Does what tessera_saver_wait_copied() does. */
TESSERA_API int32_t tessera_manager_wait_copied(tessera_manager* manager, const void* data,
                                                size_t bytes);

/* ---- Checkpoints of any format, by their names. These functions are in libtessera_checkpoint.so
 * alone, and not in Bazel's //checkpoint/c. */

typedef struct {
  size_t struct_bytes;
  const char* s3_endpoint;
  const char* format; /* of the checkpoint that is read; NULL: the library finds out */
  int32_t threads;
  tessera_progress progress;
  void* progress_context;
  const int32_t* cancelled; /* see tessera_load_options; tessera_verify() alone looks at it */
  /* A JSON file with the names of parameters by the names of tensors in the optimizer's files, for
   * checkpoints of PaddleNLP that do not tell; NULL: none. */
  const char* parameter_names_file;
} tessera_read_options;

/* Opens a checkpoint of any format that docs/convert.md names, by its folder's or file's name. */
TESSERA_API int32_t tessera_checkpoint_open_named(const char* name,
                                                  const tessera_read_options* options,
                                                  tessera_checkpoint** checkpoint);

/* Reads every byte of a checkpoint and compares checksums and, if `digests` is not 0, the contents
 * of the tensors. Damage is in the report; an error means that the checkpoint could not be read.
 *
 * Report: {"good", "damage": [{"file", "offset", "tensor", "message"}, ...], "bytes_read", ...}. */
TESSERA_API int32_t tessera_verify(const char* name, int32_t digests,
                                   const tessera_read_options* options, char** report);

/* Compares two checkpoints, whatever their shardings. If `data` is not 0, reads every element;
 * otherwise compares digests.
 *
 * Report: {"same_state", "equal_tensors", "tensors": [{"tensor", "message"}, ...], "metadata",
 * "notes", ...}. */
TESSERA_API int32_t tessera_diff(const char* a, const char* b, int32_t data,
                                 const tessera_read_options* options, char** report);

typedef struct {
  size_t struct_bytes;
  const char* topology;    /* "dp2_tp2", for the format "tessera"; NULL: "single" */
  int32_t dtype;           /* of the weights, for other formats; 0: as saved */
  int32_t weights_only;    /* for other formats */
  uint64_t max_file_bytes; /* for other formats; 0: 5e9 */
  const char* tokenizer;   /* the file or folder of the model's, for "hf" and "gguf"; NULL: none */
  int32_t allow_overflow;  /* as in tessera_load_options, for other formats */
} tessera_write_options;

/* Writes the checkpoint `source`, of any format, to `destination` in the format `format`:
 * "tessera", or one that docs/convert.md lists as written.
 *
 * Report: {"bytes", "seconds", "digests_compared", "notes", ...}. */
TESSERA_API int32_t tessera_convert(const char* source, const char* destination, const char* format,
                                    const tessera_read_options* options,
                                    const tessera_write_options* write_options, char** report);

#ifdef __cplusplus
}
#endif

#endif  // TESSERA_CHECKPOINT_C_TESSERA_CHECKPOINT_H_
