/*
 * Take-over, and flushes under way: the protocol between worker processes and the owner of a queue.
 *
 * Each of three processes runs a worker, and an owner that sleeps until its process has the lock. A process that takes
 * over goes on as a worker of itself. Workers take and flush until the queue is empty. An item is its sequence.
 * The queue begins with FIRST items. Each flush consumes an item, and enqueues one, up to ITEMS items in all.
 * With DEPTH 2, a worker may send a second flush before the answer to the first one. That flush only enqueues.
 * At any step the kernel may end a process (KILLS times), an owner may begin to leave in order (LEAVES times), and the
 * owner may return the hold of a worker that lives (RETURNS times). An owner that leaves hands out no further items,
 * and commits the flushes that come, for a time of grace. That may be over at any step. With PATIENT 1 it has no end.
 * With KEEPS 1 the owner hands over the holds of workers that live. The next owner keeps them until the worker claims
 * its item, or dies. A worker that still has its item makes a lost flush again, with a new number.
 *
 * Assertions hold the promises at each step. When nothing can move, the monitor checks that nothing was forgotten.
 * The test also searches for an endless run. There is none, so each run comes to the monitor: all calls return.
 *
 * BUG_... are planted bugs. The test plants one at a time, and spin must find it.
 */

#define N 3
#define NOBODY N
#define NONE 15                         /* no item */
#define BIT(n) (1 << (n))

mtype = { TAKE, FLUSH, OUTCOME, CLAIM,  /* requests of a worker */
          ITEM, COMMITTED, REFUSED, LOST,       /* answers of the owner */
          IDLE, WRITING, WRITTEN };     /* phases of the owner's group */

/* The kernel. A worker sees the end of its connection: to[worker] is NOBODY. */
byte lock = 0, listening = NOBODY, to[N] = NOBODY;
bool dead[N];
byte ending;                            /* parts of a process that still have to end; until then nothing else moves */
chan requests[N] = [DEPTH] of { mtype, byte, byte, byte };      /* the number of the flush, the item, its fence */
chan answers[N] = [DEPTH] of { mtype, byte, byte };             /* the item, its fence */

/* The log: what its records add up to. A successor reads all of it, and a power cut leaves what was synced. */
byte total = FIRST, consumed;           /* the count of items, and the set of the consumed ones */
byte synced;                            /* the set of items whose consumption was synced */
byte number[N];                         /* of each connection: the number of its last committed flush */

byte left[N] = NONE;                    /* of each connection: the held item that an owner has handed over */

byte leaves, returns;                   /* how often an owner began to leave, and a hold went back */

/* Seen by assertions alone: flushes in the log, flushes that failed, items of flushes that succeeded. */
short in_log[N], failed[N];
byte acknowledged, writers;
bool waits[N] = true;                   /* the worker waits for an item */

/* One flush is one record: the consumed item, the enqueued item, and the number of the flush. */
inline write_record(s) {
    assert(!(failed[s] & BIT(batch[s])));               /* a flush that failed never comes into the log */
    in_log[s] = in_log[s] | BIT(batch[s]);
    if
    :: taken[s] != NONE ->
        assert(!(consumed & BIT(taken[s])));            /* no item is consumed twice */
        consumed = consumed | BIT(taken[s])
    :: else
    fi;
    total = (total < ITEMS -> total + 1 : total);
#ifndef BUG_NUMBER_LATER
    number[s] = batch[s]
#endif
}

/* All flushes of a group share one frame: the log has all of them or none. */
inline write_group() {
    for (i : 0 .. N - 1) {
        if
        :: batch[i] -> write_record(i)
        :: else
        fi
    }
}

/* The owner makes those items ready that are new in the log. */
inline find_items() {
    do
    :: seen < total ->
        if
        :: consumed & BIT(seen)
#ifndef BUG_HANDED_OVER_AND_READY
        :: !(consumed & BIT(seen)) && (hold[0] == seen || hold[1] == seen || hold[2] == seen)
        :: !(consumed & BIT(seen)) && !(hold[0] == seen || hold[1] == seen || hold[2] == seen) -> ready!seen
#else
        :: else -> ready!seen
#endif
        fi;
        seen++
    :: else -> break
    od
}

/* A hold ends without a flush. Its item is ready again, in front of all later ones, and its fence is not valid. */
inline give_back(s) {
    fences[hold[s]]++;
#ifdef BUG_TO_THE_BACK
    ready!hold[s];
#else
    ready!!hold[s];                     /* in the order of the sequences */
#endif
    hold[s] = NONE
}

/* The workers see EOF, and the lock is free. */
inline hang_up() {
    for (i : 0 .. N - 1) {
        to[i] = (to[i] == me -> NOBODY : to[i])
    }
    listening = (listening == me -> NOBODY : listening);
    lock = (lock == me -> NOBODY : lock)
}

/* The memory of the owner is gone. */
inline forget_all() {
    for (i : 0 .. N - 1) {
        hold[i] = NONE; known[i] = 0; batch[i] = 0; taken[i] = NONE; stuck[i] = false
    }
    for (i : 0 .. ITEMS - 1) {
        fences[i] = 0
    }
    do
    :: ready?_
    :: empty(ready) -> break
    od;
    seen = 0; leaving = false; phase = IDLE;
    n = 0; item = 0; fence = 0; i = 0
}

#if defined(BUG_NO_FENCE)
#define HELD(s) true
#elif defined(BUG_FENCE_ALONE)
#define HELD(s) (fences[item] == fence)
#else
#define HELD(s) (hold[s] == item && fences[item] == fence)
#endif
#define GROUP (batch[0] + batch[1] + batch[2])
#ifdef BUG_NO_GRACE
#define MAY_GO true
#else
#define MAY_GO (!PATIENT || (hold[0] == NONE && hold[1] == NONE && hold[2] == NONE))
#endif

#if defined(BUG_KEPT_FOR_THE_DEAD) || defined(BUG_HOLDS_KEPT)
#define AWAY_DEAD(s) false
#else
#define AWAY_DEAD(s) dead[s]            /* the kernel has freed the lock of its session */
#endif

/* What the owner may do for the connection of the worker s. A take waits while no item is ready. A worker that takes
 * has none: if it holds one, the answer of an earlier owner was lost. */
#define SERVE(s) \
        :: atomic { to[s] == me && !leaving && hold[s] == NONE && nempty(ready) && requests[s]?[TAKE, _, _, _] -> take(s) } \
        :: atomic { to[s] == me && hold[s] != NONE && requests[s]?[TAKE, _, _, _] -> give_back(s) } \
        :: atomic { to[s] == me && requests[s]?[CLAIM, _, _, _] -> claim(s) } \
        :: atomic { to[s] != me && hold[s] != NONE && AWAY_DEAD(s) -> give_back(s) } \
        :: atomic { to[s] == me && phase == IDLE && !batch[s] && requests[s]?[FLUSH, _, _, _] -> flush(s) } \
        :: atomic { to[s] == me && requests[s]?[OUTCOME, _, _, _] -> outcome(s) } \
        :: atomic { phase == WRITTEN && batch[s] -> answer(s) } \
        :: atomic { to[s] == me && dead[s] -> end_connection(s) } \
        :: atomic { to[s] == me && hold[s] != NONE && returns < RETURNS -> returns++; give_back(s) }

inline take(s) {
    assert(hold[s] == NONE);
    requests[s]?TAKE(_, _, _);
    ready?item;
    assert(!(consumed & BIT(item)));
    i = 0;
    do
    :: i < item ->                      /* order: each item before this one is consumed or held */
        assert((consumed & BIT(i)) || hold[0] == i || hold[1] == i || hold[2] == i
               || taken[0] == i || taken[1] == i || taken[2] == i);
        i++
    :: else -> break
    od;
    hold[s] = item; stuck[s] = false;
    answers[s]!ITEM(item, fences[item]);
    item = 0; i = 0
}

/* A worker comes back. */
inline claim(s) {
    requests[s]?CLAIM(_, item, _);
    if
    :: hold[s] == item -> answers[s]!ITEM(item, fences[item])
    :: else -> answers[s]!LOST(0, 0)
    fi;
    item = 0
}

/* A flush joins the next group if the worker still holds its item. From then on, the item belongs to the group. */
inline flush(s) {
    requests[s]?FLUSH(n, item, fence);
    if
    :: !stuck[s] && (item == NONE || HELD(s)) ->
        batch[s] = n; taken[s] = item;
#ifndef BUG_HOLD_IN_GROUP
        hold[s] = (item == NONE -> hold[s] : NONE);
#endif
#ifdef BUG_ANSWER_FIRST
        answers[s]!COMMITTED(0, 0)
#endif
    :: else ->
#ifndef BUG_NOT_STUCK
        stuck[s] = true;                /* all flushes fail until it takes again: then it has read all answers */
#endif
        answers[s]!REFUSED(0, 0)
    fi;
    n = 0; item = 0; fence = 0
}

/* The number tells which flushes of the worker the log has: it has none behind one that was refused. */
inline outcome(s) {
    requests[s]?OUTCOME(n, _, _);
#ifdef BUG_NO_NUMBER
    answers[s]!LOST(0, 0);
#else
    answers[s]!(known[s] >= n -> COMMITTED : LOST), 0, 0;
#endif
    n = 0
}

inline answer(s) {
#ifdef BUG_NUMBER_LATER
    number[s] = batch[s];
#endif
#ifdef BUG_HOLD_IN_GROUP
    hold[s] = NONE;
#endif
#ifndef BUG_ANSWER_FIRST
    if
    :: to[s] == me -> answers[s]!COMMITTED(0, 0)
    :: else                             /* the worker has ended */
    fi;
#endif
    batch[s] = 0; taken[s] = NONE;
    phase = (GROUP -> WRITTEN : IDLE)
}

/* EOF: the worker has ended, since the owner lives. No process will ask for its number. */
inline end_connection(s) {
    to[s] = NOBODY;
#ifndef BUG_HOLDS_KEPT
    if
    :: hold[s] != NONE -> give_back(s)
    :: else
    fi;
#endif
    do
    :: requests[s]?_, _, _, _
    :: empty(requests[s]) -> break
    od;
    number[s] = 0; known[s] = 0; stuck[s] = false
}

active [N] proctype owner() provided (!ending || dead[_pid]) {
    byte me = _pid;
    byte hold[N] = NONE, fences[ITEMS]; /* of each connection: its held item; of each item: the number of its hold */
    byte known[N];                      /* of each connection: number, as the log had it */
    byte batch[N], taken[N] = NONE;     /* the group: the number of each flush, and its item */
    bool stuck[N];                      /* of each connection: a flush was refused */
    chan ready = [ITEMS] of { byte };
    byte seen, n, item, fence, i;
    mtype phase = IDLE;
    bool leaving;

    {
        do
        :: lock == me;
            atomic {                    /* recover */
                for (i : 0 .. N - 1) {
#ifdef BUG_FORGET_AT_TAKE_OVER
                    number[i] = 0;
#endif
                    known[i] = number[i];
                    hold[i] = (dead[i] -> NONE : left[i]);
#ifndef BUG_HANDED_OVER_TWICE
                    left[i] = NONE
#endif
                }
                find_items(); i = 0;
#ifndef BUG_NO_SYNC
                synced = consumed;      /* the last write of a dead owner was not synced */
#endif
                listening = me
            }
            do
            SERVE(0)
            SERVE(1)
            SERVE(2)
            :: atomic { phase == IDLE && GROUP -> phase = WRITING; writers++; assert(writers == 1) }
            :: atomic { phase == WRITING ->
                    write_group();
                    synced = consumed;
                    for (i : 0 .. N - 1) {
                        known[i] = (batch[i] -> batch[i] : known[i])
                    }
                    find_items(); i = 0;
                    phase = WRITTEN; writers-- }
            :: atomic { !leaving && leaves < LEAVES -> leaves++; leaving = true }
            :: atomic { leaving && phase == IDLE && !GROUP && MAY_GO ->
#ifndef BUG_NOT_HANDED_OVER
                    for (i : 0 .. N - 1) {
                        left[i] = (KEEPS -> hold[i] : NONE)
                    }
#endif
#ifdef BUG_FORGET_AT_LEAVE
                    number[0] = 0; number[1] = 0; number[2] = 0;
#endif
                    hang_up(); forget_all(); break }
#ifdef BUG_LEAVE_EARLY
            :: atomic { leaving && phase == WRITING && lock == me -> hang_up(); i = 0 }
#endif
            od
        od
    } unless {
        atomic { dead[me] ->            /* the log has the write under way, or not; only then the lock is free */
            if
            :: phase == WRITING -> write_group(); writers--
            :: phase == WRITING -> writers--
            :: phase != WRITING
            fi;
            hang_up(); forget_all(); ending-- }
    }
}

#ifdef BUG_TWO_OWNERS
#define FREE (listening == NOBODY && lock != me)
#else
#define FREE (lock == NOBODY)
#endif

/* Send a request. Without a connection, the worker connects to the owner, or takes the lock and becomes the owner. */
inline call(kind, n, item, fence) {
    do
    :: atomic { to[me] != NOBODY -> requests[me]!kind(n, item, fence); break }
    :: atomic { to[me] == NOBODY && listening != NOBODY ->
            do                          /* the old connection is gone, with all that was in it */
            :: requests[me]?_, _, _, _
            :: answers[me]?_, _, _
            :: empty(requests[me]) && empty(answers[me]) -> break
            od;
            to[me] = listening; requests[me]!kind(n, item, fence); break }
    :: atomic { to[me] == NOBODY && FREE -> lock = me }
    od
}

#ifdef BUG_SEND_AGAIN
#define ASK FLUSH, oldest, item, fence
#else
#define ASK OUTCOME, oldest, 0, 0
#endif

/* Send a request through a connection that may have ended. The worker sees that when it waits for the answer. */
inline send(kind, n, item, fence) {
    if
    :: to[me] != NOBODY -> requests[me]!kind(n, item, fence)
    :: else
    fi
}

/* After an answer: ask for the outcome of the next flush, if the flushes were sent to an owner that has ended. */
inline ask_next() {
    if
    :: asks && oldest <= n -> send(ASK)
    :: else
    fi
}

/* A flush returns True. */
inline succeed() {
    assert(in_log[me] & BIT(oldest));
    in_log[me] = in_log[me] - BIT(oldest);
    if
    :: item != NONE ->
        assert(!(acknowledged & BIT(item)));
        assert(synced & BIT(item));
        acknowledged = acknowledged | BIT(item)
    :: else
    fi;
    oldest++; item = NONE; fence = 0
}

/* A flush raises SessionLostError or HoldLostError. */
inline fail() {
    assert(!(in_log[me] & BIT(oldest)));
    assert(!PATIENT || item == NONE);   /* an owner that leaves costs no worker its work */
    failed[me] = failed[me] | BIT(oldest);
    oldest++; item = NONE; fence = 0
}

/* A flush was not committed, and its number never will be. The worker may still have its item. */
inline retry() {
    assert(!(in_log[me] & BIT(oldest)));
    failed[me] = failed[me] | BIT(oldest);
    oldest++; fence = 0
}

active [N] proctype worker() provided (!ending || dead[_pid - N]) {
    byte me = _pid - N;
    byte item = NONE, fence, n, oldest = 1;     /* the flushes oldest .. n are under way */
    bool asks;                          /* the worker asks for their outcomes, one by one */

    {
        skip;
begin:  call(TAKE, 0, 0, 0);
        if
        :: atomic { answers[me]?ITEM(item, fence) -> waits[me] = false }
        :: to[me] == NOBODY -> goto begin       /* no error: the worker only waited */
        fi;

        /* The worker works on the item. If the owner ends, the next call claims it, or raises SessionLostError. */
have:   if
        :: atomic { to[me] == NOBODY ->
#ifdef BUG_FENCE_ALONE
                n++ };
            call(FLUSH, n, item, fence)
#elif KEEPS
                skip };
back:       call(CLAIM, 0, item, 0);
            if
            :: answers[me]?ITEM(_, fence) -> goto have
            :: atomic { answers[me]?LOST(_, _) ->
                    assert(KILLS || RETURNS);   /* an owner that leaves costs no worker its work */
                    item = NONE; fence = 0; waits[me] = true; goto begin }
            :: to[me] == NOBODY -> goto back
            fi
#else
                assert(!PATIENT);
                item = NONE; fence = 0; waits[me] = true; goto begin }
#endif
        :: atomic { to[me] != NOBODY -> n++; requests[me]!FLUSH(n, item, fence) }
        fi;
#if DEPTH > 1
        if
        :: atomic { n++; send(FLUSH, n, NONE, 0) }
        :: true
        fi;
#endif
        do
        :: atomic { oldest > n -> asks = false; waits[me] = true; goto begin }
        :: atomic { oldest <= n && answers[me]?[COMMITTED, _, _] -> answers[me]?_, _, _; succeed(); ask_next() }
        :: atomic { oldest <= n && answers[me]?[REFUSED, _, _] -> answers[me]?_, _, _; fail(); ask_next() }
#if KEEPS
        :: atomic { oldest <= n && answers[me]?[LOST, _, _] -> answers[me]?_, _, _;
                retry(); asks = false;
                if
                :: item != NONE -> goto back
                :: else -> waits[me] = true; goto begin
                fi }
#else
        :: atomic { oldest <= n && answers[me]?[LOST, _, _] -> answers[me]?_, _, _;
#ifndef BUG_ASKS_FOREVER
                fail();
#endif
                ask_next() }
#endif
        :: atomic { oldest <= n && to[me] == NOBODY -> asks = true };
            call(ASK)
        od
    } unless { atomic { dead[me] -> item = NONE; fence = 0; n = 0; oldest = 0; asks = false; ending-- } }
}

active proctype kernel() provided (!ending) {
    byte kills;

    do
    :: atomic { kills < KILLS -> kills++;
            if
            :: !dead[0] -> dead[0] = true
            :: !dead[1] -> dead[1] = true
            :: !dead[2] -> dead[2] = true
            fi;
            ending = 2 }
    :: break                            /* no further process ends */
    od
}

/* When nothing can move, each worker that lives waits for an item, and all items are consumed: none is lost. */
active proctype monitor() {
    byte s;

    atomic { timeout;
        do
        :: s < N ->
            assert(dead[s] || (waits[s] && to[s] != NOBODY && consumed == BIT(total) - 1));
            s++
        :: else -> break
        od;
        assert(!writers && (acknowledged & synced) == acknowledged) }
}
