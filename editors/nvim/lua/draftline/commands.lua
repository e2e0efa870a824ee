-- `:Draftline` and its words.
local api = vim.api

local M = {}

local words = {
  enable = function(draftline)
    draftline.enable()
  end,
  disable = function(draftline)
    draftline.disable()
  end,
  restart = function(draftline)
    draftline.restart()
  end,
  status = function(draftline)
    api.nvim_echo({ { table.concat(draftline.report(), '\n') } }, false, {})
  end,
}

function M.create()
  local names = vim.tbl_keys(words)
  table.sort(names)
  api.nvim_create_user_command('Draftline', function(call)
    local word = words[call.args]
    if not word then
      return require('draftline.state').tell(
        ('there is no `:Draftline %s`, only %s'):format(call.args, table.concat(names, ', ')),
        vim.log.levels.ERROR
      )
    end
    word(require('draftline'))
  end, {
    nargs = 1,
    desc = 'Draftline: ' .. table.concat(names, ', '),
    complete = function(begun)
      return vim.tbl_filter(function(name)
        return vim.startswith(name, begun)
      end, names)
    end,
  })
end

return M
