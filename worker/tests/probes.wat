;; The probes of the conformance suite for the CPU device. Every device has a module with these kernels.
;; Parameters lie in slots of 8 bytes.
(module
  (import "env" "memory" (memory 2))
  (global $__stack_pointer (mut i32) (i32.const 65536))
  (export "__stack_pointer" (global $__stack_pointer))
  (data (i32.const 65536) "pristine")

  ;; copy(from, to, bytes: i64)
  (func (export "copy") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (memory.copy (i32.load offset=8 (local.get $args)) (i32.load (local.get $args))
                 (i32.load offset=16 (local.get $args))))

  ;; fill(to, byte: i64, bytes: i64)
  (func (export "fill") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (memory.fill (i32.load (local.get $args)) (i32.load offset=8 (local.get $args))
                 (i32.load offset=16 (local.get $args))))

  ;; module_global(seen): 8 bytes of module data as found, which are then overwritten
  (func (export "module_global") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (i64.store (i32.load (local.get $args)) (i64.load (i32.const 65536)))
    (i64.store (i32.const 65536) (i64.const -1)))

  ;; local_memory(seen): 8 bytes of the stack as found, which are then overwritten
  (func (export "local_memory") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (local $at i32)
    (local.set $at (i32.sub (global.get $__stack_pointer) (i32.const 64)))
    (i64.store (i32.load (local.get $args)) (i64.load (local.get $at)))
    (i64.store (local.get $at) (i64.const -1)))

  ;; stack_pointer(seen): the stack pointer as found, which is then moved
  (func (export "stack_pointer") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (i64.store (i32.load (local.get $args)) (i64.extend_i32_u (global.get $__stack_pointer)))
    (global.set $__stack_pointer (i32.sub (global.get $__stack_pointer) (i32.const 4096))))

  ;; shared_memory(seen): the last 8 bytes of the launch's shared memory as found, then overwritten
  (func (export "shared_memory") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (local $at i32)
    (local.set $at (i32.sub (i32.add (i32.load offset=28 (local.get $launch))
                                     (i32.load offset=24 (local.get $launch))) (i32.const 8)))
    (i64.store (i32.load (local.get $args)) (i64.load (local.get $at)))
    (i64.store (local.get $at) (i64.const -1)))

  ;; arguments(seen, at: i64): 8 bytes at an offset from the launch's parameters
  (func (export "arguments") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (i64.store (i32.load (local.get $args))
      (i64.load (i32.add (local.get $args) (i32.load offset=8 (local.get $args))))))

  ;; count_blocks(counter): adds the number of blocks that ran
  (func (export "count_blocks") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (i64.store (i32.load (local.get $args))
      (i64.add (i64.load (i32.load (local.get $args))) (local.get $count))))

  ;; work(): something to do for every block
  (func (export "work") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (local $x f64)
    (loop $again
      (local.set $x (f64.sqrt (f64.add (local.get $x) (f64.const 1))))
      (local.set $count (i64.sub (local.get $count) (i64.const 1)))
      (br_if $again (i64.gt_s (local.get $count) (i64.const 0))))
    (f64.store (i32.const 0) (local.get $x)))

  ;; trap()
  (func (export "trap") (param $args i32) (param $launch i32) (param $first i64) (param $count i64) unreachable)

  ;; divide(by: i64)
  (func (export "divide") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (drop (i64.div_s (i64.const 1) (i64.load (local.get $args)))))

  ;; recurse()
  (func $recurse (export "recurse") (param $args i32) (param $launch i32) (param $first i64) (param $count i64)
    (call $recurse (local.get $args) (local.get $launch) (local.get $first) (local.get $count))
    (call $recurse (local.get $args) (local.get $launch) (local.get $first) (local.get $count))))
