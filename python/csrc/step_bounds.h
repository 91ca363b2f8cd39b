// Which operators belong to a training step.
//
//   update | average of the weights | evaluation | forward, backward, update |
//          |  behind each update:   |  now and   |  of the step              |
//          |  of the step to come   |  then:     |                           |
//          |                        |  beside it |                           |
#pragma once

namespace smartswap::step_bounds {

// Whether an operator that the training runs next is of the running step. With gradients on, it is,
// and so is all that comes after it. Without, before such a one, it may belong to an evaluation,
// and is beside the step; but for as many operators as there were before both of the last two
// steps: a script runs those each time.
bool has_next();

// The next operator comes after the end of a step.
void end_step();

}  // namespace smartswap::step_bounds
