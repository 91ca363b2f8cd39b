/* The C interface of SmartSwap: one engine for one device of this process.
 *
 * Functions that return `int` return a smartswap_code. After any code but SMARTSWAP_OK,
 * smartswap_last_error() says what happened and how to fix it. Nothing unwinds into the caller.
 * All functions may be called from any thread; ops belong to the thread that begins them.
 * Sizes are in bytes, times in microseconds. Streams are the driver's own handles (cudaStream_t,
 * aclrtStream) as integers; the host device ignores them.
 */
#ifndef SMARTSWAP_H
#define SMARTSWAP_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMARTSWAP_ABI_VERSION 6u

typedef enum smartswap_code {
  SMARTSWAP_OK = 0,
  /* Even with everything else away, the memory asked for does not fit under the cap. */
  SMARTSWAP_OUT_OF_MEMORY = 1,
  /* A call out of order, or with arguments that cannot be. */
  SMARTSWAP_USAGE = 2,
  /* Settings that are wrong or contradict each other. */
  SMARTSWAP_SETTINGS = 3,
  /* The device, its driver or its library failed, or is not there. */
  SMARTSWAP_DEVICE = 4,
  /* The engine stopped at an earlier internal error. */
  SMARTSWAP_BROKEN = 5
} smartswap_code;

/* How an op uses memory. */
typedef enum smartswap_access {
  SMARTSWAP_READ = 0,
  SMARTSWAP_WRITE = 1,
  SMARTSWAP_READ_WRITE = 2,
  /* Written if the block was allocated inside the running op, else read and written. */
  SMARTSWAP_UNKNOWN = 3,
  /* A result of the op: written if the block was allocated inside the running op, else passed
   * over, since then it is an input that the op returns. */
  SMARTSWAP_OUTPUT = 4
} smartswap_access;

/* Whether an op is part of the training step. */
typedef enum smartswap_part {
  /* Counted, recorded and planned for. */
  SMARTSWAP_STEP = 0,
  /* Beside the step, such as an evaluation between two steps: safe, but no plan knows it. */
  SMARTSWAP_ASIDE = 1
} smartswap_part;

/* The version of this interface that the library has: compare with SMARTSWAP_ABI_VERSION. */
uint32_t smartswap_abi_version(void);

/* What the last failed call on this thread said; never NULL, valid until the next failed one. */
const char *smartswap_last_error(void);

/* ---- The engine -------------------------------------------------------------------------- */

/* Settings of smartswap_open. Fill with smartswap_default_settings first. */
typedef struct smartswap_settings {
  /* sizeof(smartswap_settings). */
  uint32_t struct_size;
  /* "host", "cuda", "cuda:1", "acl", "acl:1". */
  const char *device;
  /* The cap of physical device memory; 0: all that the device has free, of which little more is
   * held than steps need. One that is more than the device has is told on stderr and taken for
   * 0. */
  uint64_t memory_bytes;
  /* The cap of pinned host memory; 0: what the device's NUMA node and the group have free. */
  uint64_t host_memory_bytes;
  /* Blocks of at least this size move; 0: the default (8 MiB). Each takes a whole number of the
   * device's pieces (2 MiB on CUDA), so smaller ones waste memory. */
  uint64_t min_block_bytes;
  /* The stream on which ops run by default. Ignored by the host device, whose ops run on the
   * calling thread. */
  uint64_t compute_stream;
  /* "performance": activations move, and optimizer state where they alone are not enough.
   * "memory": both. NULL: what config_file says, or else whichever makes the faster step. */
  const char *prefer;
  /* One of those that docs/configuration.md lists, such as "swap". NULL: what config_file says, or
   * else "joint". */
  const char *strategy;
  /* A TOML file with more settings, or NULL. What is set above, that is neither 0 nor NULL, wins
   * over it. Keys that only the command line's commands take are passed over. docs/configuration.md
   * lists all keys; a cap measured by the step's own peak is refused, as no step has run yet. */
  const char *config_file;
  /* A trace of each newly recorded step is saved here, or NULL. */
  const char *record_file;
} smartswap_settings;

void smartswap_default_settings(smartswap_settings *settings);

/* Opens the engine. One process has one engine at a time. */
int smartswap_open(const smartswap_settings *settings);

/* Waits for the device and gives everything back. Fails with SMARTSWAP_USAGE while blocks are
 * live, and leaves the engine as it is. */
int smartswap_close(void);

/* 1 if the engine is open, else 0. It is not open in forked children of its process. */
int smartswap_is_open(void);

/* The stream that the engine was opened with. */
uint64_t smartswap_compute_stream(void);

/* Brings every block back and keeps it on the device from now on, so that nobody needs to begin
 * ops any more. Fails with SMARTSWAP_OUT_OF_MEMORY if they do not fit under the cap. */
int smartswap_bring_home(void);

/* ---- Memory ------------------------------------------------------------------------------ */

/* Memory for use on `stream`, inside the running op if there is one. The address stays from here
 * to smartswap_free. It stays on the device until an op touches it; but what is allocated while
 * the engine sleeps or wakes may leave afterwards, so hold what no op will touch. NULL on failure.
 * A size of 0 gives memory too. */
void *smartswap_allocate(uint64_t size_bytes, uint64_t stream);

/* Frees memory, swapped memory too. What was submitted before still sees it. */
int smartswap_free(void *address);

/* Work on `stream` uses the memory besides its ops, until it is freed (record_stream). */
int smartswap_use_on(const void *address, uint64_t stream);

/* Brings the memory back before what `stream` is given next, and keeps it on the device until it
 * is freed: somebody uses it where no op says so. `by` says who, for reports. As it may be written
 * unseen, replays do not read it from here on; so this matters for memory that never moves too. */
int smartswap_hold(const void *address, uint64_t stream, const char *by);

/* As smartswap_hold, but until the step ends: somebody takes the memory's address, and may use it
 * on any known stream. Inside an op that uses the memory it does nothing, as the op keeps it; the
 * op counts as one that uses it otherwise. Where memory runs out with all else away, what was
 * lent the longest leaves earlier: whoever uses it then faults. */
int smartswap_lend(const void *address, uint64_t stream, const char *by);

/* If `address` lies in memory that moves: writes words about it for whoever used it where it was
 * not, and returns 1. Takes no lock, so a signal handler may call it. */
int smartswap_describe_fault(const void *address, char *text, uint64_t size_bytes);

/* The start and the size of the allocation that `address` points into. Fails with
 * SMARTSWAP_USAGE if the engine did not allocate it. Either result may be NULL. */
int smartswap_find(const void *address, void **start, uint64_t *size_bytes);

/* Gives caches back to the driver. */
int smartswap_trim(void);

/* Sends every block away that can leave, waits for that, and gives all memory that nobody uses
 * back to the driver, for somebody else to use meanwhile; `reserved` of the stats is what stays.
 * Addresses stay. What ops touch comes back as ever; loans end. Call it outside ops, while all
 * ops are told of. Fails with SMARTSWAP_DEVICE before anything leaves if the host has no room. */
int smartswap_suspend(void);

/* Begins to bring that back, in the order in which it is needed, as long as there is room. */
int smartswap_resume(void);

/* Counts device memory that somebody else takes towards the cap: `size_bytes` in all from now on.
 * Others leave to make room for more, and what they had is the driver's when this returns: call it
 * before that memory is taken, and after it was given back. `reserved` of the stats has it too. */
int smartswap_set_outside(uint64_t size_bytes);

typedef void (*smartswap_lister)(
    void *argument, void *start, uint64_t size_bytes, int is_resident);
/* Calls `lister` with each live allocation, swapped memory too, in the order of addresses, and
 * whether its bytes are in device memory. Nothing moves. */
int smartswap_list(smartswap_lister lister, void *argument);

typedef void (*smartswap_visitor)(void *argument, void *start, uint64_t size_bytes);
/* Calls `visitor` with each live allocation, swapped memory too, in the order of addresses, each
 * on the device while it is called. It must only read, and must not call the engine. On the host
 * device this is how to copy everything before a fork, which gives the child none of it. */
int smartswap_visit(smartswap_visitor visitor, void *argument);

/* 1 if the device has host memory that kernels and copies of it address directly, else 0. */
int smartswap_has_swapped(void);

/* Host memory that the device addresses directly; it does not count towards the cap, and does
 * not move. NULL on failure. */
void *smartswap_allocate_swapped(uint64_t size_bytes, uint64_t stream);

/* Gives it back; it is reused only after what `stream` was given until now. */
int smartswap_free_swapped(void *address, uint64_t stream);

/* 1 if `address` lies in memory of smartswap_allocate_swapped, else 0. */
int smartswap_is_swapped(const void *address);

/* ---- Ops --------------------------------------------------------------------------------- */

/* Begins an op on this thread. Ops begun inside it are part of it: what they use stays on the
 * device until the outermost one ends. If this fails, no op was begun. */
int smartswap_begin(const char *name, uint64_t stream, smartswap_part part);

/* Makes the memory at `address` usable until the op ends, and orders the op's work after its
 * copy. Memory that the engine did not allocate is passed over. Call it for inputs before the
 * op's work, and for outputs any time before its end. */
int smartswap_touch(const void *address, smartswap_access access);

/* Memory that an op uses, and how. */
typedef struct smartswap_touched {
  const void *address;
  smartswap_access access;
} smartswap_touched;
/* Touches each of these, in their order: for an op of many, this costs less than one by one. If it
 * fails, any of them may not be usable. */
int smartswap_touch_all(const smartswap_touched *touched, uint32_t count);

/* 1 if `address` lies in memory that can leave the device, else 0. */
int smartswap_moves(const void *address);

/* Allocations of at least so many bytes can leave the device. */
uint64_t smartswap_least_bytes(void);

/* A way to run an op once more, on the same memory. */
typedef struct smartswap_replay {
  /* Submits the op's work again, to bring back the output at this address: from the same inputs
   * it writes the same bytes there, and to no other memory that was there before. It may allocate
   * and free; begin, touch, lend and end do nothing in it. 0 if it worked; if not, it may write
   * why, as a text of at most `why_bytes` with its zero. */
  int (*run)(void *data, void *output, char *why, uint64_t why_bytes);
  /* Gives `data` up. It must not call the engine. */
  void (*release)(void *data);
  void *data;
  /* All memory that the op wrote and that can leave the device. */
  const void *const *outputs;
  uint32_t output_count;
  /* Memory that it read and that cannot: from now on touch it too where ops write it. */
  const void *const *inputs;
  uint32_t input_count;
  /* 1 if the op would also be offered where what it reads and writes is of other sizes, else 0. */
  int at_any_size;
} smartswap_replay;

/* What use the engine has for a replay of the running op. */
typedef enum smartswap_use {
  /* None now. */
  SMARTSWAP_UNUSED = 0,
  /* The plan may drop what the op writes. */
  SMARTSWAP_PLANNED = 1,
  /* The step is recorded, and the next plan may. */
  SMARTSWAP_RECORDED = 2,
  /* The step is recorded, and the next plan is for steps of other sizes: it may if the op is
     offered at any size. */
  SMARTSWAP_RECORDED_FOR_SIZES = 3
} smartswap_use;
int smartswap_replay_use(void);

/* Lets the engine drop the outputs of the running op instead of copying them, and run the op
 * again. Call it at the end of an outermost op, when all that it uses has been touched. The replay
 * is released at the latest when the engine closes, also if this fails; its lists are not needed
 * any more when this returns. */
int smartswap_offer_replay(const smartswap_replay *replay);

/* Drops the memory's bytes now, if a replay can bring them back: 1 if it did, else 0. */
int smartswap_discard(const void *address);

/* Ends the op that was begun last on this thread. */
int smartswap_end(void);

/* Number of ops open on this thread. */
uint32_t smartswap_depth(void);

/* ---- Graphs ------------------------------------------------------------------------------- */

/* Work that a stream captures does not run, but later, any number of times, as one graph. So what
 * is captured is no op. Make a graph; until the capture has ended note what ops would touch,
 * instead of beginning them, and allocate nothing for them here. What is noted is on the device
 * from then on until no stream captures any more, as a driver may look at the memory of a copy
 * when it is captured. A run is one op, in which smartswap_graph_touch touches all that was noted.
 * What was freed since is passed over. */

/* Call it just before a stream begins to capture: it waits for all work. Until as many calls of
 * smartswap_capture_ended nothing is recorded on a stream that captures, nor is it waited for. */
int smartswap_capture_begins(void);
int smartswap_capture_ended(void);

/* A new graph; 0 on failure. */
uint64_t smartswap_graph_make(void);

/* It will not be run any more. */
int smartswap_graph_forget(uint64_t graph);

/* The graph uses each of these, after what was noted before. Returns when they are on the device:
 * call it before the work is captured. All that is noted while streams capture must fit at once. */
int smartswap_graph_note(uint64_t graph, const smartswap_touched *touched, uint32_t count);

/* The graph runs all of another one, as if what that one uses were noted. */
int smartswap_graph_include(uint64_t graph, uint64_t inner);

/* Touches all that a graph uses, as smartswap_touch_all does. All of it must fit at once. */
int smartswap_graph_touch(uint64_t graph);

/* 1 if the memory at `address` stays on the device until it is freed, else 0: it does not move, or
 * is held. Memory that the engine did not allocate stays. */
int smartswap_stays(const void *address);

/* ---- Steps -------------------------------------------------------------------------------- */

/* Ends the training step: call it after each optimizer step, outside any op. */
int smartswap_step(void);

/* 1 if an op of the running step has begun, else 0. */
int smartswap_step_begun(void);

/* ---- Checking order ----------------------------------------------------------------------- */

/* With `check_order = true` in the settings file each access of an op, each copy and each piece of
 * memory that is given back is held against all before it: what nothing orders behind an earlier
 * access of the same bytes is an error, in every run. A front end tells how its framework orders
 * streams by itself; what it leaves out is taken for missing. */
typedef enum smartswap_order_call {
  /* The event stands for all work of the stream so far. */
  SMARTSWAP_RECORD = 0,
  /* Later work of the stream comes after what the event stands for. */
  SMARTSWAP_WAIT = 1,
  SMARTSWAP_DESTROY_EVENT = 2,
  /* The host waited: for what an event stands for, for a stream, for all streams. */
  SMARTSWAP_SYNCHRONIZE_EVENT = 3,
  SMARTSWAP_SYNCHRONIZE_STREAM = 4,
  SMARTSWAP_SYNCHRONIZE_DEVICE = 5
} smartswap_order_call;

/* 1 if order is checked, else 0. */
int smartswap_checks_order(void);
/* Tells of a call when it was made, by the thread that made it. Handles are the device's own; one
 * that the call has not is 0. Does nothing where order is not checked. */
int smartswap_note_order(int call, uint64_t event, uint64_t stream);

/* ---- Sleeping ---------------------------------------------------------------------------- */

/* While a model fits with room to spare, nobody needs to say what ops use. A front end may then
 * stop calling begin, touch and end: it asks smartswap_may_sleep after a step, and while asleep
 * asks smartswap_should_wake before each allocation. */

/* 1 if the steps fit and go as planned without any moves, else 0. */
int smartswap_may_sleep(void);
/* No ops are told of from now on: brings all memory back, waits for it, and sends none away. An
 * allocation that finds no room gets host memory that the device addresses, for its whole life.
 * Steps are only counted. If it fails, for want of room, the engine goes on as before. Call it
 * between steps. */
int smartswap_sleep(void);
/* 1 if `size_bytes` more would bring a sleeping engine near its cap: wake it first. */
int smartswap_should_wake(uint64_t size_bytes);
/* Ops are told of again from now on. But one may be running that nobody told of, and nobody knows
 * what it uses: until smartswap_awake memory is as it was asleep. */
int smartswap_wake(void);
/* Every op that runs now has been told of. */
int smartswap_awake(void);

/* ---- Several ranks ----------------------------------------------------------------------- */

/* Ranks that train one model wait for each other, so the time of a step says what all of them
 * tried. Where they judge each step together, they choose alike. The engine knows no network: a
 * front end carries numbers, of which all ranks get the largest each. It calls smartswap_share on
 * all ranks in the same step, and after each smartswap_step goes through a round:
 * smartswap_get_figures, the largest of each, smartswap_agree. Its result says when the next round
 * is. A front end that loses the others calls smartswap_share(SMARTSWAP_ALONE). */

/* Numbers of a round. */
#define SMARTSWAP_FIGURES 25u

/* How a rank's steps are judged: alone, also those that still wait for others, or together. Where
 * all recorded the same step they plan for what the ops of one rank use, which leads. */
typedef enum { SMARTSWAP_ALONE, SMARTSWAP_FOLLOWS, SMARTSWAP_LEADS } smartswap_role;

/* When the next round is. */
typedef enum smartswap_round {
  /* All ranks are Stable: begin one after the next step, and bring what came of it to
   * smartswap_agree one step later, so that nobody waits. */
  SMARTSWAP_LATER = 0,
  /* After the next step, to be waited for there. */
  SMARTSWAP_NEXT_STEP = 1,
  /* At once. */
  SMARTSWAP_AT_ONCE = 2,
  /* The ranks recorded the same step: first take the largest of each of smartswap_get_times to
   * smartswap_agree_times, and then see there. */
  SMARTSWAP_TIMES = 3
} smartswap_round;

/* From the running step on, called between steps. Begin with a round of SMARTSWAP_NEXT_STEP. */
int smartswap_share(smartswap_role role);

/* What this rank tells of the oldest step that the ranks have not agreed on. */
int smartswap_get_figures(double *figures, uint32_t n_figures);

/* What all ranks told: of each figure the largest. Call it between steps. `n_times` gets the
 * number of times to agree on, which is 0 unless `round` becomes SMARTSWAP_TIMES. */
int smartswap_agree(
    const double *worst, uint32_t n_figures, smartswap_round *round, uint32_t *n_times);

/* The step as numbers: times in microseconds, what is told of blocks, and what ops use. */
int smartswap_get_times(double *times, uint32_t n_times);

/* Of each time the largest. `round` becomes any but SMARTSWAP_TIMES. */
int smartswap_agree_times(const double *times, uint32_t n_times, smartswap_round *round);

/* ---- What it did ------------------------------------------------------------------------- */

/* One counter of bytes. */
typedef struct smartswap_bytes {
  uint64_t current;
  /* The highest since smartswap_reset_peaks. */
  uint64_t peak;
} smartswap_bytes;

typedef struct smartswap_stats {
  /* sizeof(smartswap_stats); set it before the call. */
  uint32_t struct_size;
  /* 0 WarmUp, 1 SearchPolicy, 2 Stable. */
  uint32_t stage;
  /* Steps ended. */
  uint64_t steps;
  uint64_t limit_bytes;
  /* Asked for by live blocks. */
  smartswap_bytes requested;
  /* The same rounded up to what they hold, or would hold if they were not away. */
  smartswap_bytes allocated;
  /* Of them on the device. */
  smartswap_bytes active;
  /* Taken from the driver: active ones, caches, segments. Never above the limit. */
  smartswap_bytes reserved;
  smartswap_bytes pinned_host;
  /* Of them in slots of blocks that are away, or were and may go again. */
  smartswap_bytes used_host;
  uint64_t allocations;
  /* Over all steps that reported. */
  uint64_t swapped_out_bytes;
  uint64_t swapped_in_bytes;
  uint64_t recomputed_ops;
  /* Small memory that was freed, and stays now because replays read it. */
  uint64_t kept_bytes;
  /* Touches by the step's ops of blocks that were away and that nobody had asked for. */
  uint64_t misses;
  /* Allocations and touches of the step that sent others away on the spot. */
  uint64_t rescues;
  /* Lent memory that left before its step ended. */
  uint64_t recalls;
  uint64_t host_waits;
  double stall_us;
  /* The last step that reported. */
  double last_step_us;
  /* Tells the plan of the running step from other plans; 0 without one. */
  uint64_t plan;
  /* Steps ended in WarmUp, in SearchPolicy and in Stable. */
  uint64_t steps_by_stage[3];
  /* What the driver was asked for: chunks created, released, mapped at an address, unmapped. In
   * all, and in the last step that reported. */
  uint64_t memory_calls[4];
  uint64_t last_memory_calls[4];
  /* Steps that differed from their plan's in a few ops and followed it in all others. */
  uint64_t branches;
  /* What the last step that followed a plan would take with memory for all; 0 if none did. */
  double unlimited_us;
  /* The most plans that one search tries. */
  uint64_t search_steps;
  /* How many steps have reported: fewer than ended, as a device is behind its host. */
  uint64_t reported_steps;
} smartswap_stats;

int smartswap_get_stats(smartswap_stats *stats);
int smartswap_reset_peaks(void);

/* What the engine decided and why, as a JSON text. Free it with smartswap_free_text. NULL on
 * failure. */
char *smartswap_explain(void);
/* What the step would take under other caps, and with more micro-batches, as a JSON text; plans for
 * each of them, which takes seconds for large steps. Fails before a step was recorded. Free it with
 * smartswap_free_text. NULL on failure. */
char *smartswap_advise(void);
/* What the step would take under its cap if the optimizer's updates waited until their weights are
 * used, and if they did not, as a JSON text {"recorded_us", "deferred_us"}; "null" where none could
 * wait. Makes two plans. Fails before a step was recorded. Free it with smartswap_free_text. NULL
 * on failure. */
char *smartswap_deferral(void);
/* What the search for a plan did since the last call, a line each: stages, plans that are tried,
 * what they were predicted to take and took, what is adopted and why. Empty if it did nothing; free
 * it with smartswap_free_text. NULL on failure. */
char *smartswap_take_news(void);
void smartswap_free_text(char *text);

/* Who keeps memory on the device, as a JSON list of {"by", "until", "blocks", "bytes"}, most bytes
 * first; `until` is "freed" (smartswap_hold) or "step end" (smartswap_lend). Free it with
 * smartswap_free_text. NULL on failure. */
char *smartswap_held(void);

/* Saves the last recorded step as a trace that `smartswap plan` reads. */
int smartswap_save_trace(const char *path);

/* Writes what is known of the run into a folder: explain.json, and trace.json and plan.json if
 * there are. All three are about one step: the last Stable one that followed a plan; if there was
 * none the last Stable one, or the last that was recorded. Where steps differ in their sizes,
 * steps.json has those that were recorded, a line each. caps.json is what smartswap_advise says,
 * but of steps of more than 20,000 ops. */
int smartswap_save_report(const char *folder);

#ifdef __cplusplus
}
#endif

#endif
